//! Runs a session in a shell, and compares its output with the page.

use std::{
    env,
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use polylock_integration_tests::cargo;

use super::page::Step;

/// The longest time of a session, in seconds.
const TIMEOUT: &str = "100";

/// The line before the exit code of a command.
const END: char = '\u{1e}';

/// Stands for any text in a line of a page; alone in a line, for any lines.
const ANY: &str = "…";

/// Functions of the script. A reader of the page sees that a command in the background has joined its queue, before the next command is
/// typed; the script waits for that.
const PREPARE: &str = "\
exec 2>&1
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
__end() { local code=$?; printf '\\n\\036%s\\n' $code; return $code; }
__requests() { polylock list --output jsonl | grep -o '\"owner\"' | wc -l; }
__joined() { local i; for ((i = 0; i < 600; i++)); do [ $(__requests) -le $1 ] || return 0; sleep 0.05; done; echo 'no request'; }
";

/// Runs the steps in `directory`, and returns the differences from the page. The first text of each replacement stands on the page, the
/// second one replaces it in commands.
pub(super) fn run(directory: &Path, steps: &[Step], replacements: &[(String, String)]) -> Vec<String> {
    let mut script = PREPARE.to_owned();
    for Step { command, .. } in steps {
        let command =
            replacements.iter().fold(command.clone(), |command, (from, to)| command.replace(from, to));
        script += &if command.ends_with(" &") {
            format!("__before=$(__requests)\n{command}\n__joined $__before\n__end\n")
        } else {
            format!("{command}\n__end\n")
        };
    }
    let file = directory.join(".session");
    fs::write(&file, script).unwrap();
    let mut shell = Command::new("timeout");
    shell.args(["--kill-after", "5", TIMEOUT, "bash"]).arg(&file).current_dir(directory).stdin(Stdio::null());
    shell.env_clear().env("HOME", directory).env("PATH", path()).env("LANG", "C.UTF-8").env("USER", "deploy");
    let output = shell.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let text = replacements.iter().fold(text, |text, (from, to)| text.replace(server(to), server(from)));
    compare(steps, &text)
}

/// Returns the server and the database of a URL: polylock shows no user.
fn server(url: &str) -> &str {
    url.split_once('@').unwrap().1
}

/// The directory of the command, before those of the system.
fn path() -> OsString {
    let own = cargo::polylock().parent().unwrap().to_owned();
    env::join_paths([own].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap()
}

/// Returns the steps with an output or an exit code that is not on the page.
fn compare(steps: &[Step], text: &str) -> Vec<String> {
    let mut parts = text.split(END);
    let mut output = parts.next().unwrap_or_default();
    let mut problems = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let command = &step.command;
        let Some((code, next)) = parts.next().and_then(|part| part.split_once('\n')) else {
            problems.push(format!("{command}: it did not end within {TIMEOUT} s: {output}"));
            return problems;
        };
        // polylock shows a wait that takes longer than half a second, as any does on a busy machine.
        let is_shown = |line: &&str| !line.starts_with("polylock: waiting for ");
        let lines: Vec<&str> = output.lines().map(str::trim_end).filter(is_shown).collect();
        let lines = &lines[..lines.len().saturating_sub(usize::from(lines.last() == Some(&"")))];
        let expected: Vec<&str> = step.output.iter().map(|line| line.trim_end()).collect();
        if !all_match(&expected, lines) {
            problems.push(format!("{command}\n  on the page: {expected:#?}\n  in fact: {lines:#?}"));
        }
        let shows_code = steps.get(index + 1).is_some_and(|next| next.command == "echo $?");
        if code != "0" && !shows_code {
            problems.push(format!("{command}: it failed with {code}, and the page does not show that"));
        }
        output = next;
    }
    problems
}

/// Returns true if these lines are those of the page.
fn all_match(expected: &[&str], lines: &[&str]) -> bool {
    match (expected.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((&ANY, rest)), _) => (0..=lines.len()).any(|skipped| all_match(rest, &lines[skipped..])),
        (Some((first, expected)), Some((line, lines))) => matches(first, line) && all_match(expected, lines),
        _ => false,
    }
}

/// Returns true if a line is that of the page.
fn matches(expected: &str, line: &str) -> bool {
    let Some((start, rest)) = expected.split_once(ANY) else { return expected == line };
    let Some(line) = line.strip_prefix(start) else { return false };
    let ends = line.char_indices().skip(1).map(|(at, _)| at).chain([line.len()]);
    !line.is_empty() && ends.into_iter().any(|at| matches(rest, &line[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ellipsis_stands_for_some_text_or_for_lines() {
        assert!(matches("held by …, token …", "held by a:1/2, token 3"));
        assert!(!matches("held by …, token …", "held by , token 3"));
        assert!(!matches("free", "freed"));
        assert!(all_match(&["a", ANY, "c"], &["a", "b", "b", "c"]) && all_match(&[ANY], &[]));
        assert!(!all_match(&["a"], &["a", "b"]) && !all_match(&["a", ANY, "c"], &["a", "b"]));
    }
}
