//! Work that is incorrect without a lock.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    time::Duration,
};

use polylock::Mode;
use polylock_integration_tests::clock;
use polylock_testkit::history::Recorder;

use crate::task::{Task, print_line, wait_for_line};

/// `increment URL NAME FILE HISTORY TIMES LOCKED`: adds to the number in FILE, TIMES times, under the lock if LOCKED is
/// `locked`, and writes each critical section to a file of its own in the
/// directory HISTORY.
pub(crate) async fn run(task: &Task) {
    let (file, history, times) = (Path::new(task.text(0)), task.text(1), task.number(2));
    let locked = task.text(3) == "locked";
    let mut history = own_file_in(history);
    let recorder = Recorder::new();
    let client = std::process::id().to_string();
    let locks = task.locks().await;
    print_line("ready");
    wait_for_line();
    for _ in 0..times {
        if !locked {
            add_one(file).await;
            continue;
        }
        let attempt = recorder.invoke(&task.name, &client, Mode::Exclusive);
        let guard = locks.lock(&task.name).acquire().await.unwrap();
        let hold = attempt.acquired(&guard);
        add_one(file).await;
        let section = hold.releasing(&guard);
        guard.release().await.unwrap();
        writeln!(history, "{section}").unwrap();
    }
    print_line("done");
}

fn own_file_in(directory: &str) -> File {
    File::create_new(Path::new(directory).join(std::process::id().to_string())).unwrap()
}

/// Reads, pauses a moment, writes.
async fn add_one(file: &Path) {
    let number: u64 = fs::read_to_string(file).unwrap().trim().parse().unwrap_or(0);
    clock::pause(Duration::from_millis(1)).await;
    fs::write(file, (number + 1).to_string()).unwrap();
}

/// `contend URL NAME HISTORY TASKS MILLIS [HOLD]`: as many tasks take the lock again and again, for so many milliseconds in all,
/// and hold it for HOLD of them each time, or do nothing with it.
pub(crate) async fn contend(task: &Task) {
    let (history, tasks, lasts) = (task.text(0), task.number(1), Duration::from_millis(task.number(2)));
    let held = (task.more.len() > 3).then(|| Duration::from_millis(task.number(3)));
    let locks = task.locks().await;
    let recorder = Recorder::new();
    print_line("ready");
    wait_for_line();
    let until = clock::now() + lasts;
    let tasks: Vec<_> = (0..tasks)
        .map(|index| {
            let (locks, recorder, name) = (locks.clone(), recorder.clone(), task.name.clone());
            let client = format!("{}/{index}", std::process::id());
            tokio::spawn(async move {
                while clock::now() < until {
                    let attempt = recorder.invoke(&name, &client, Mode::Exclusive);
                    let guard = locks.lock(&name).acquire().await.unwrap();
                    let hold = attempt.acquired(&guard);
                    if let Some(held) = held {
                        clock::pause(held).await;
                    }
                    hold.releasing(&guard);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    polylock_testkit::history::write(BufWriter::new(own_file_in(history)), &recorder.sections()).unwrap();
    print_line("done");
}
