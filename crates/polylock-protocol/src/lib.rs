//! The HTTP protocol between the lock service and the store `polylock+http://`.
//!
//! The service passes the operations of a [`Backend`](polylock_core::Backend) to the store behind it. Each operation is a `POST` with a JSON
//! body to a path of [`paths`], and every entry in the store belongs to the request of the client, not to the server: so a client may send
//! each operation to any server in front of the same store.
//!
//! | path | body | reply |
//! |---|---|---|
//! | `GET` [`STORE`](paths::STORE) | | [`StoreBody`] |
//! | [`CLAIM`](paths::CLAIM) | [`ClaimBody`] | [`ClaimReply`] |
//! | [`WAIT`](paths::WAIT) | [`RequestBody`] | [`WakeReply`] |
//! | [`KEEP_ALIVE`](paths::KEEP_ALIVE) | [`KeepAliveBody`] | [`KeepAliveReply`] |
//! | [`RELEASE`](paths::RELEASE) | [`RequestBody`] | [`ReleaseReply`] |
//! | [`CONVERT`](paths::CONVERT) | [`ConvertBody`] | [`ConvertReply`] |
//! | [`PARK`](paths::PARK) | [`ParkBody`] | [`ReleaseReply`] |
//! | [`RAISE`](paths::RAISE) | [`RaiseBody`] | [`RaiseReply`] |
//! | [`INSPECT`](paths::INSPECT) | [`NameBody`] | [`StatusBody`] |
//! | [`LIST`](paths::LIST) | [`ListBody`] | a list of [`StatusBody`] |
//! | [`BREAK`](paths::BREAK) | [`BreakBody`] | a list of [`EntryBody`] |
//! | [`READ_RECORD`](paths::READ_RECORD) | [`NameBody`] | [`RecordReply`] |
//! | [`WRITE_RECORD`](paths::WRITE_RECORD) | [`WriteRecordBody`] | `null` |
//! | `GET` [`ALERTS`](paths::ALERTS) | | a line of JSON for each name of a lock that was broken, without an end |
//!
//! The reply to a failed operation is a [`Problem`] (RFC 9457). Times are relative, in whole microseconds, with one exception: a claim
//! expires by the clock of the server, which every reply contains ([`CLOCK`]), so that a claim that is executed late grants nothing. So do the
//! operations that end a hold which other processes may know, and breaks ([`EXPIRES`]).

mod capabilities;
mod clock;
mod interfaces;
mod operations;
pub mod paths;
mod problem;
mod status;
pub mod values;

pub use self::{
    capabilities::{CapabilitiesBody, StoreBody},
    clock::{InvalidServerTime, ServerTime},
    interfaces::{
        BreakBody, ConvertBody, ConvertReply, ListBody, NameBody, ParkBody, RaiseBody, RaiseReply,
        RecordBody, RecordReply, WriteRecordBody,
    },
    operations::{
        ClaimBody, ClaimReply, GrantBody, KeepAliveBody, KeepAliveOutcome, KeepAliveReply, LostBody,
        PositionBody, ReleaseReply, RequestBody, TermsBody, WakeReply,
    },
    problem::{InvalidBody, Problem},
    status::{BreakNoticeBody, EntryBody, PastGrantBody, StatusBody},
};

/// The header of each reply with a [`ServerTime`]: the clock of the server.
pub const CLOCK: &str = "polylock-clock";

/// The header of an operation with a [`ServerTime`], or with one for each of several servers, separated by commas: after that time by its clock, the server does not carry the operation
/// out, and replies with the problem [`LATE`]. The client repeats the operation, unless it has given it up.
pub const EXPIRES: &str = "polylock-expires";

/// The word of the problem of an operation that arrives too late.
pub const LATE: &str = "late";

/// The media type of a [`Problem`].
pub const PROBLEM: &str = "application/problem+json";

/// The greatest size of the body of an operation, in bytes.
pub const MAX_BODY: usize = 1 << 20;

/// Returns whole microseconds.
pub(crate) fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
