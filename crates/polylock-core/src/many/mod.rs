//! Several locks that are acquired and held together.
//!
//! It is composed of single locks, so it works on every store, and sends nothing that a single lock does not send. All callers acquire in the
//! order of the names, so no cycle of waiting callers can arise.

mod multi_guard;
mod multi_lock;
mod partial;

pub use multi_guard::MultiGuard;
pub use multi_lock::MultiLock;
pub(crate) use partial::PartialSet;
