//! All stores and other lock libraries, measured side by side by one protocol: `docs/comparison.md`.
//!
//! A library is used by a program of its own, which does what lines of its input say: `integration-tests/peers/README.md` describes them. The
//! program of this library is `worker`.
//!
//! | module | part |
//! |---|---|
//! | [`subject`](mod@subject) | the libraries on their stores |
//! | `program` | a process of a library |
//! | [`parts`](mod@parts) | the measurements |
//! | `processes` | the processor time and the memory of processes |
//! | [`run`](mod@run) | a run of some parts on some subjects, and its file |
//! | [`page`](mod@page) | `docs/comparison.md` |

pub mod page;
pub mod parts;
mod processes;
mod program;
pub mod run;
pub mod subject;
