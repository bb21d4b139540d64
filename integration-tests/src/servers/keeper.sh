# Keeps one server: its directory, its processes, its end.
#
# A line on the standard input says what to do, and one line answers it. When the input ends, the test process has
# ended, however that came about: then the server is killed and its directory removed.
#
#   run COMMAND      runs it to its end; answers its exit status
#   finally COMMAND  is run at the end of all, before the directory is removed
#   start COMMAND    starts the server; answers its process id
#   kill             SIGKILL to the server and all that it has started; none is left when it answers
#   freeze, thaw     SIGSTOP and SIGCONT to the same; all have stopped when it answers
#   end              as if the input had ended
#
# COMMAND is quoted for a shell. $1 is the server's name, for that of its directory.

# An answer that nobody reads any more must not end this.
trap '' PIPE
directory=$(mktemp -d "${TMPDIR:-/tmp}/polylock-$1-XXXXXX") || exit
cd "$directory" || exit
# The server's user may not write anywhere else.
export TMPDIR="$directory"
exec 2>>log
server=
last=:
echo "$directory"

# Whether every thread of $1 is in one of the states $2.
all_in() {
    for thread in /proc/"$1"/task/*/stat; do
        read -r stat <"$thread" || continue # gone
        stat=${stat##*) }
        case $2 in *"${stat%% *}"*) ;; *) return 1 ;; esac
    done
} 2>/dev/null

# Stops $1 and all that it has started, and adds them to $tree. Who has stopped starts nobody, so none is missed.
stop() {
    kill -STOP "$1" || return 0
    until all_in "$1" TtZX; do sleep 0.01; done
    tree="$tree $1"
    for child in $(cat /proc/"$1"/task/*/children); do stop "$child"; done
} 2>/dev/null

kill_all() {
    tree=
    stop "$server"
    [ -z "$tree" ] || kill -KILL $tree
    for process in $tree; do
        until all_in "$process" ZX; do sleep 0.01; done
    done
    server=
} 2>/dev/null

while read -r word rest; do
    eval "set -- $rest"
    case $word in
    run)
        "$@" </dev/null >>log 2>&1
        echo $?
        ;;
    finally)
        last=$rest
        echo ok
        ;;
    start)
        (trap - PIPE && exec "$@") </dev/null >>log 2>&1 &
        server=$!
        echo $server
        ;;
    kill)
        [ -z "$server" ] || kill_all
        echo ok
        ;;
    freeze)
        tree=
        stop "$server"
        echo ok
        ;;
    thaw)
        [ -z "$tree" ] || kill -CONT $tree
        echo ok
        ;;
    end) break ;;
    esac
done

[ -z "$server" ] || kill_all
eval "set -- $last"
"$@" </dev/null >>log 2>&1
cd /
# The server may have a disk of its own.
umount "$directory" 2>/dev/null
# More than once, because something that dies can be in the middle of making a file.
for again in 1 2 3 4 5; do
    rm -rf "$directory" && break
    sleep 0.1
done
