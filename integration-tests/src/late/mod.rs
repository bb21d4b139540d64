//! Late, repeated and reordered messages of four processes to real servers.
//!
//! A schedule is about one lock. A holder acquires it, an adopter takes the hold over by its handle, a breaker breaks it, and the next holder
//! waits for it: in four processes, each behind relays of its own. A relay withholds one message of one of them, and delivers it later: from
//! half a second to past the lease, whatever its client has done meanwhile. Some schedules deliver copies of messages in addition, and in
//! another order. The seed determines the operations and the message; the timing of real servers differs each time.
//!
//! | module | part |
//! |---|---|
//! | [`acts`], [`script`], `plots` | the operations of a schedule, drawn from the seed |
//! | [`conductor`] | carries a schedule out |
//! | [`message`], [`remote`], [`player`] | the conversation with a process, its two ends |
//! | [`relay`], [`frames`], [`copies`] | the messages to the servers: withheld, found, repeated |
//! | [`site`] | the servers and the processes |
//! | [`history`], [`check`], [`excuses`] | what has happened, the promises, and the exceptions that a store documents |
//! | [`planted`] | bugs by which the checks are checked |
//! | [`run`], [`record`] | many schedules at a time, and the record of them |

pub mod acts;
pub mod check;
pub mod conductor;
pub mod copies;
pub mod excuses;
pub mod frames;
pub mod history;
pub mod message;
pub mod planted;
pub mod player;
mod plots;
pub mod record;
pub mod relay;
pub mod remote;
pub mod run;
pub mod script;
pub mod site;
