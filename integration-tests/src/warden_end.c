/* Kills a warden with SIGKILL while it starts its command. For LD_PRELOAD; POLYLOCK_WARDEN_END names a directory.
 *
 * - For each of its files `before-1` to `before-9`, one warden is killed before it reads its orders.
 * - With the file `after`, a warden is killed after it has started its command, when that has written the file `began`, and before it
 *   reports that. Its parent is stopped, so that it finds the warden dead: the command resumes it.
 *
 * It removes the file that it obeys. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_warden(void) {
    char text[8192] = {0};
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    size_t first = strlen(text) + 1;
    return length > (ssize_t)first && strcmp(text + first, "__warden") == 0;
}

static const char *path(const char *name) {
    static char text[4096];
    const char *directory = getenv("POLYLOCK_WARDEN_END");
    snprintf(text, sizeof text, "%s/%s", directory ? directory : "/nonexistent", name);
    return text;
}

__attribute__((constructor)) static void end_before(void) {
    char name[] = "before-0";
    if (!is_warden()) return;
    for (name[7] = '1'; name[7] <= '9'; name[7]++) {
        if (unlink(path(name)) == 0) kill(getpid(), SIGKILL);
    }
}

int posix_spawnp(pid_t *pid, const char *program, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const arguments[], char *const variables[]) {
    int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]) =
        dlsym(RTLD_NEXT, "posix_spawnp");
    int result = spawn(pid, program, actions, attributes, arguments, variables);
    int is_leader = arguments[1] && strcmp(arguments[1], "__leader") == 0;
    if (result == 0 && !is_leader && is_warden() && unlink(path("after")) == 0) {
        while (access(path("began"), F_OK) != 0) usleep(1000);
        kill(getppid(), SIGSTOP);
        kill(getpid(), SIGKILL);
    }
    return result;
}
