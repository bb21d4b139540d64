//! Real processes that use a store on real servers, under a schedule of faults that is drawn from a seed; and the record of such runs.
//!
//! The seed determines the schedule and the decisions of the clients. It does not determine a run: the timing of real servers and of the
//! machine differs each time.
//!
//! | module | part |
//! |---|---|
//! | [`configuration`](mod@configuration) | the stores, their servers and their promises |
//! | [`plan`](mod@plan) | the schedule of faults, drawn from the seed |
//! | [`client`] | the clients of one process, in the program `worker` |
//! | [`site`] | the servers, processes and proxies of a run, and their faults |
//! | [`run`](mod@run) | a run: it applies the faults, collects the history and checks it |
//! | [`observed`] | everything that was seen, and the violations in it |
//! | `looks` | the entries that the store shows |
//! | [`check`](mod@check), `late_claims`, `disturbances` | the promises; the times in which faults and load explain a late grant |
//! | [`window`] | the part of the history that shows a violation |
//! | [`planted`](mod@planted) | bugs that are planted at run time |
//! | [`peers`](mod@peers) | other lock libraries, in runs with the same faults |
//! | [`record`](mod@record), [`page`](mod@page) | the result of a run as a line; `docs/safety.md` |
//! | [`long`] | the goals of the long record, and the run that it needs most |

pub mod check;
pub mod client;
pub mod configuration;
mod disturbances;
mod late_claims;
pub mod long;
mod looks;
pub mod observed;
pub mod page;
pub mod peers;
pub mod plan;
pub mod planted;
pub mod record;
pub mod run;
pub mod site;
pub mod window;
