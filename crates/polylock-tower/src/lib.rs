//! A tower layer that refuses HTTP requests with a stale fencing token.
//!
//! A lease can't stop a client that was paused just before it sent its request. The service can: it keeps the greatest token of each
//! resource, and answers 412 to a smaller one. **After the service has begun to handle a request with a token, it handles none with a
//! smaller token of the same resource.** Requests of one resource are handled one after the other, because a handler that was passed a
//! smaller token could otherwise write after one with a greater token. An equal token is accepted.
//!
//! ```
//! use axum::{Router, routing::put};
//! use polylock_tower::{FencingLayer, MemoryTokens};
//!
//! // The client sends the name of its lock, and the token of its guard: Lock-Name: orders/42, Fencing-Token: 7.
//! let layer = FencingLayer::by_header(MemoryTokens::default(), "lock-name".parse()?);
//! let service: Router = Router::new().route("/orders/{id}", put(async || "paid")).layer(layer);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # Replies
//!
//! | status | reason |
//! |---|---|
//! | 412 Precondition Failed | the token is smaller than a recorded one: the client has lost its lock |
//! | 428 Precondition Required | the header `Fencing-Token` is missing; [`FencingLayer::optional`] passes such requests |
//! | 400 Bad Request | the token is not a number from 0 to 2^63 - 1 in decimal digits, or the resource does not have 1 to 255 bytes |
//! | 503 Service Unavailable | the token can't be checked: the store of tokens failed or is full |
//!
//! Their bodies are problem details (RFC 9457, `application/problem+json`). A request that passes has the [`FencingToken`] as an
//! extension, so a handler can send it on.
//!
//! # Limits
//!
//! * [`MemoryTokens`] knows the tokens of one process since its start. A service with several processes, or one that must refuse a stale
//!   token after a restart, needs a [`TokenStore`] of its own, or checks the token in its database in the transaction of the write, which
//!   is the strongest fence.
//! * A request ends when its handler has returned a response, or its client has disconnected. Work that a handler leaves running is not
//!   guarded.
//! * A handler that hangs blocks the later requests of its resource: put a layer with a time limit inside this one.
//! * The layer does not authenticate. A client that may write can also record a token that no store has issued, and so lock out the
//!   others.

mod layer;
mod memory;
mod refusal;
mod store;

pub use layer::{Fencing, FencingLayer, TOKEN_HEADER};
pub use memory::{Full, MemoryPermit, MemoryTokens};
pub use polylock_core::FencingToken;
pub use store::{Raised, TokenStore};
