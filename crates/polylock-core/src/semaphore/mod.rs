//! Semaphores: at most N holders at the same time, each with a numbered slot.
//!
//! A semaphore is composed of exclusive locks, so it works on every store: a *turnstile*, which orders the acquisitions, and one lock for
//! each slot. Their names contain a NUL byte, which no name of a user does (see [`LockName::slot`](crate::LockName::slot)).
//!
//! 1. An acquisition waits for the turnstile, in order of arrival if the store keeps an order.
//! 2. Under the turnstile, it tries the slot that this process has used last. If that is taken, it waits for all slots at the same time, and
//!    takes the first one that it is granted. So only one acquisition waits for slots, and all others wait for the turnstile.
//! 3. It releases the turnstile.
//!
//! A try does not use the turnstile: it tries the slots. The first waiter is in the queues of all slots, so a try does not overtake it.
//!
//! The label of each hold contains the number of slots. An acquisition reads the labels of the other holds, and fails if they have another
//! number. If the store can't list them at a low cost ([`Inspect::lists_semaphores`](crate::Inspect::lists_semaphores)), it reads those in the
//! first slots.

mod guard;
mod label;
mod lock;
mod status;

pub use guard::SlotGuard;
pub use lock::Semaphore;
pub(crate) use status::inspect;
pub use status::{SemaphoreStatus, SlotStatus};
