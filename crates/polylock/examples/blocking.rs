//! A synchronous program: threads without an async runtime import files, each file once, on all machines that run it.
//!
//! ```text
//! cargo run -p polylock --example blocking                      # locks in this process
//! cargo run -p polylock --example blocking --features postgres postgres://locks@db/app
//! ```
//!
//! The work under a lock checks it before each write, because nothing stops a thread from outside. The last act of the program is the drop
//! of a guard: its release arrives at the store before the process ends.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    thread,
};

use polylock::{FencingToken, blocking::Locks};

const THREADS: usize = 3;
const FILES: u32 = 12;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The imported files, with the fencing tokens of their writes. In an application this is a table.
type Imported = Mutex<BTreeMap<u32, FencingToken>>;

fn main() -> Result<(), AnyError> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url)?;
    let imported = Imported::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| import_all(&locks, &imported))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
    })?;
    let guard = locks.lock("import/summary").acquire()?;
    let count = imported.lock().unwrap_or_else(PoisonError::into_inner).len();
    println!("{count} of {FILES} files imported, summary with token {}", guard.fencing_token());
    Ok(())
}

/// Imports all files that no other thread or process imports at the moment.
fn import_all(locks: &Locks, imported: &Imported) -> Result<(), AnyError> {
    for file in 0..FILES {
        let Some(guard) = locks.lock(format!("import/{file}")).try_acquire()? else { continue };
        guard.run(|guard| {
            for _part in 0..3 {
                // An error ends the work, and with it the hold.
                guard.ensure_held()?;
            }
            let mut imported = imported.lock().unwrap_or_else(PoisonError::into_inner);
            imported.entry(file).or_insert_with(|| guard.fencing_token());
            Ok::<(), polylock::Error>(())
        })??;
    }
    Ok(())
}
