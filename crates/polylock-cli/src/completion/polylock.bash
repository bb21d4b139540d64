# Completions of polylock for bash, which the program itself computes.
_polylock() {
    # Bash splits words at colons and equals signs, which URLs and names of locks contain. The words up to the cursor are joined again
    # where no blank separates them.
    local rest=${COMP_LINE:0:COMP_POINT} words=() word i IFS=$'\013'
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        [[ $i -lt $COMP_CWORD ]] || word=${rest#"${rest%%[![:blank:]]*}"}
        if [[ $i -gt 0 && $rest != [[:blank:]]* && -n $rest ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words[${#words[@]}]=$word
        fi
        rest=${rest#"${rest%%[![:blank:]]*}"}
        rest=${rest#"$word"}
    done
    local current=${words[${#words[@]} - 1]}
    COMPREPLY=($(
        VARIABLE=bash _CLAP_IFS=$IFS _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) \
            polylock -- "${words[@]}" 2>/dev/null </dev/null
    ))
    # Bash replaces only the part after the last colon or equals sign.
    COMPREPLY=("${COMPREPLY[@]#"${current%"$2"}"}")
    [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != *[=/:] ]] || compopt -o nospace 2>/dev/null
}
complete -o bashdefault -F _polylock polylock
