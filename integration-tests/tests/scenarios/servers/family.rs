//! The resources of a server: processes, a port, shared memory.

use std::{fs, net::TcpStream};

use rustix::process::{Pid, Signal, kill_process};

/// Returns the parent of each process that has not ended.
fn parents() -> Vec<(u32, u32)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let stats = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats
        .filter_map(|stat| {
            let (name, rest) = stat.rsplit_once(") ")?;
            let mut rest = rest.split(' ');
            let (state, parent) = (rest.next()?, rest.next()?);
            (!["Z", "X"].contains(&state)).then_some(())?;
            Some((name.split_once(' ')?.0.parse().ok()?, parent.parse().ok()?))
        })
        .collect()
}

/// Returns the process `id` and its children.
pub(super) fn family(id: u32) -> Vec<u32> {
    let children = parents().into_iter().filter(|(_, parent)| *parent == id).map(|(child, _)| child);
    [id].into_iter().chain(children).collect()
}

pub(super) fn all_gone(family: &[u32]) -> bool {
    parents().iter().all(|(process, _)| !family.contains(process))
}

pub(super) fn is_port_closed(url: &str) -> bool {
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.0.0.1:")).unwrap();
    TcpStream::connect(address).is_err()
}

/// Returns the number of System V memory segments that the process `id` has created.
pub(super) fn segments(id: u32) -> usize {
    let list = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let creators = list.lines().filter_map(|line| line.split_whitespace().nth(4)?.parse::<u32>().ok());
    creators.filter(|creator| *creator == id).count()
}

pub(super) fn signal(processes: &[u32], signal: Signal) {
    for id in processes {
        // A helper of the server may have ended meanwhile.
        kill_process(Pid::from_raw(i32::try_from(*id).unwrap()).unwrap(), signal).ok();
    }
}
