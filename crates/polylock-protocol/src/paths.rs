//! The paths of the operations of a store.

/// The description of the store.
pub const STORE: &str = "/v1/store";
/// [`Backend::claim`](polylock_core::Backend::claim).
pub const CLAIM: &str = "/v1/store/claim";
/// [`Backend::wait`](polylock_core::Backend::wait).
pub const WAIT: &str = "/v1/store/wait";
/// [`Backend::keep_alive`](polylock_core::Backend::keep_alive).
pub const KEEP_ALIVE: &str = "/v1/store/keep-alive";
/// [`Backend::release`](polylock_core::Backend::release).
pub const RELEASE: &str = "/v1/store/release";
/// [`Convert::convert`](polylock_core::Convert::convert).
pub const CONVERT: &str = "/v1/store/convert";
/// [`Park::park`](polylock_core::Park::park).
pub const PARK: &str = "/v1/store/park";
/// [`RaiseToken::raise`](polylock_core::RaiseToken::raise).
pub const RAISE: &str = "/v1/store/raise";
/// [`Inspect::inspect`](polylock_core::Inspect::inspect).
pub const INSPECT: &str = "/v1/store/inspect";
/// [`Inspect::list`](polylock_core::Inspect::list).
pub const LIST: &str = "/v1/store/list";
/// [`Inspect::break_lock`](polylock_core::Inspect::break_lock).
pub const BREAK: &str = "/v1/store/break";
/// [`KeepRecord::read_record`](polylock_core::KeepRecord::read_record).
pub const READ_RECORD: &str = "/v1/store/read-record";
/// [`KeepRecord::write_record`](polylock_core::KeepRecord::write_record).
pub const WRITE_RECORD: &str = "/v1/store/write-record";
/// The names of locks that were broken: [`HoldAlerts`](polylock_core::HoldAlerts).
pub const ALERTS: &str = "/v1/store/alerts";
