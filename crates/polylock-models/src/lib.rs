//! Exhaustive models of the protocols between core, the stores and their servers. Each model explores every order of its steps within
//! stated bounds: messages that are late, lost or executed after their client has given up, callers that go away, processes that die.
//!
//! | model | protocol |
//! |---|---|
//! | [`acquisition`] | core: claims, cancellation, rollback and release |
//! | [`redlock`] | Redlock: proposals, withdrawals, renewals, and the client's record of them |
//! | [`redis_queue`] | Redis: the queue with hand-over, on [`handover`] |
//! | [`sql_handover`] | SQL: the hand-over by transactions, on [`handover`] |
//! | [`zookeeper_session`] | ZooKeeper: the packets that prove how long the servers keep a session |
//! | [`azure_lease`] | Azure: the lease of a blob, and the token in its metadata |
//!
//! A model calls the predicates of the code, [`deadline`](polylock_core::deadline), [`invariant`](polylock_core::invariant) and
//! [`queue`](polylock_core::queue). Each has *twins*, the same model with one planted bug, and every twin must violate a property: a model that finds nothing proves nothing
//! otherwise.
//!
//! Time is counted in ticks. A step takes no time, and a tick may pass between any two steps, so a tick stands for any delay.
//!
//! `cargo run -p polylock-models --release` prints the bounds, the states and the twins of all models.

pub mod acquisition;
pub mod azure_lease;
pub mod check;
pub mod handover;
pub mod numbers;
pub mod redis_queue;
pub mod redlock;
pub mod sql_handover;
pub mod time;
pub mod zookeeper_session;

use check::Check;

/// The models by name, each with the check of the model and its twins.
pub const MODELS: [(&str, Check); 6] = [
    ("core", check::check::<acquisition::Core>),
    ("redlock", check::check::<redlock::Redlock>),
    ("redis-queue", check::check::<handover::Handover<redis_queue::Redis>>),
    ("sql-handover", check::check::<handover::Handover<sql_handover::Sql>>),
    ("zookeeper-session", check::check::<zookeeper_session::Session>),
    ("azure-lease", check::check::<azure_lease::AzureLease>),
];
