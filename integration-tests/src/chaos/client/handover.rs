//! Holds that a client leaves to another process, which adopts them by their handles; and breaks of the holds of others.

use std::{fs, time::Duration};

use polylock::{Guard, HoldHandle, HoldLifetime};
use polylock_testkit::history::{Hold, Section};

use super::{
    Client, ClientBug, End,
    files::{OFFERED, TAKEN},
};
use crate::recipe::Held;

/// A hold that was left to any process.
struct Offer {
    lock: String,
    /// The client that has left it.
    client: String,
    handle: HoldHandle,
}

/// Returns the name of the client that adopts a hold of `client`. Its process is recognised by what precedes the last point.
fn adopter(name: &str, client: &str) -> String {
    format!("{name}<{}", client.replace('.', "-"))
}

/// Returns the sections, of which those of one hold are one: it lasts until its adopter ends it. Nobody knows when such a lock is free, as if
/// its client had died.
pub(in crate::chaos) fn merged(sections: &[Section]) -> Vec<Section> {
    let (adopted, mut merged): (Vec<_>, Vec<_>) =
        sections.iter().cloned().partition(|section| section.client.contains('<'));
    for section in adopted {
        let is_it = |it: &&mut Section| {
            (&it.lock, it.token) == (&section.lock, section.token)
                && section.client.ends_with(&adopter("", &it.client))
        };
        match merged.iter_mut().find(is_it) {
            Some(first) => {
                let Section { deadline, released, lost, polled, .. } = section;
                (first.deadline, first.released, first.lost, first.polled) =
                    (deadline, released, lost, polled);
                first.open = true;
            }
            // Its first client has written nothing, so it is a hold by itself.
            None => merged.push(section),
        }
    }
    merged
}

impl Client {
    /// Returns true if holds are left to other processes, in a store in which these can end them.
    pub(super) fn can_hand_over(&self) -> bool {
        self.process.work.hands_over && self.process.locks.capabilities().hold_lifetime == HoldLifetime::Lease
    }

    /// Leaves a hold to any process.
    pub(super) async fn pass_on(&mut self, guard: Guard, hold: Hold) {
        let section = Section { open: true, ..hold.releasing(&guard) };
        self.process.files.section(&section);
        let Ok(handle) = guard.into_handle().await else { return };
        let (histories, name) = (&self.process.work.directory, format!("{}-{}", self.name, self.requests));
        // It appears when it is complete.
        let (new, path) = (histories.join(TAKEN).join(&name), histories.join(OFFERED).join(&name));
        let text = format!("{}\n{}\n{}", section.lock, section.client, handle.to_text());
        let written = fs::write(&new, text).and_then(|()| fs::rename(new, path));
        written.unwrap_or_else(|error| panic!("can't write a handle: {error}"));
    }

    /// Takes a hold that was left, if there is one; no other client gets it.
    fn take(&self) -> Option<Offer> {
        let histories = &self.process.work.directory;
        let path = fs::read_dir(histories.join(OFFERED)).ok()?.next()?.ok()?.path();
        let taken = histories.join(TAKEN).join(&self.name);
        // Another client may have been faster.
        fs::rename(path, &taken).ok()?;
        let text = fs::read_to_string(taken).ok()?;
        let mut lines = text.lines();
        let (lock, client) = (lines.next()?.to_owned(), lines.next()?.to_owned());
        Some(Offer { lock, client, handle: lines.next()?.parse().ok()? })
    }

    /// Adopts a hold that was left, if there is one, uses and releases it.
    pub(super) async fn adopt(&mut self, lasts: Duration) {
        let Some(Offer { lock, client, handle }) = self.take() else { return };
        let (process, mode) = (self.process.clone(), handle.mode());
        let (short, long) = process.work.leases;
        let ttl = Duration::from_millis(if self.random.bool() { short } else { long });
        let attempt = process.recorder.invoke(lock, adopter(&self.name, &client), mode);
        match process.locks.adopt_for(&handle, ttl).await {
            Ok(guard) => self.held(Held::Lock(guard), attempt, lasts, End::Release).await,
            Err(error) if error.is_temporary() || error.lost().is_some() => {}
            Err(error) => process.files.error(&self.name, &error),
        }
    }

    /// Asks the holders of a lock to stop.
    pub(super) async fn break_lock(&mut self, name: &str) {
        let process = self.process.clone();
        let order = process.locks.break_lock(name);
        let is_forced = process.work.bug == Some(ClientBug::ForcedBreaks);
        let order = if is_forced { order.force() } else { order };
        match order.await {
            Err(error) if !error.is_temporary() => process.files.error(&self.name, &error),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use polylock_core::Mode;

    use super::*;

    #[test]
    fn the_sections_of_a_hold_are_one_until_its_adopter_ends_it() {
        let section = |client: &str, token, from, released| Section {
            token: Some(token),
            released: Some(released),
            ..Section::new("n", client, Mode::Exclusive, from..from + 1)
        };
        let adopted = section(&adopter("p1.2.3", "p0.0.1"), 7, 20, 30);
        let sections = [adopted, section("p0.0.2", 6, 0, 5), section("p0.0.1", 7, 10, 15)];
        let merged = merged(&sections);
        let ends: Vec<_> = merged.iter().map(|it| (&*it.client, it.acquired, it.released, it.open)).collect();
        assert_eq!(ends, [("p0.0.2", 1, Some(5), false), ("p0.0.1", 11, Some(30), true)]);
    }
}
