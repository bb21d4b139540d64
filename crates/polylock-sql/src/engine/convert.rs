//! Conversions of holds to other modes.

use async_trait::async_trait;
use polylock_core::{Conversion, ConversionOutcome, Convert, FencingToken, Request, Result};
use sqlx::Error;

#[cfg(any(feature = "postgres", feature = "mysql"))]
use super::rows::TimedReply;
use super::{
    backend::LeaseBackend,
    columns::{Columns, require},
    dialect::Dialect,
    rows::duration,
};

/// The modes of a conversion as the tables store them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConversionModes {
    /// The new mode.
    pub(crate) to: i64,
    /// The modes that conflict with it.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only PostgreSQL stores them"))]
    pub(crate) conflicts: i64,
    /// The modes of other holders that are in its way.
    pub(crate) in_way: i64,
    /// The modes that conflict with the present mode.
    pub(crate) held_conflicts: i64,
    /// The modes of the hold while it waits; zero if it does not.
    pub(crate) waiting: i64,
}

impl ConversionModes {
    pub(crate) fn new(conversion: &Conversion) -> Self {
        let conflicts = i64::from(conversion.to.conflicts());
        Self {
            to: conversion.to.bit().into(),
            conflicts,
            in_way: if conversion.is_upgrade() { conflicts } else { 0 },
            held_conflicts: conversion.held.conflicts().into(),
            waiting: if conversion.waits { conversion.waiting_bits().into() } else { 0 },
        }
    }
}

/// Decodes the reply: the hold after the conversion, (token, modes, remaining lease of a holder in the way, 1 if that waits for this hold).
/// Returns `None` if there is no hold that can be converted.
pub(crate) fn outcome(
    conversion: &Conversion,
    row: Option<&impl Columns>,
) -> Result<Option<ConversionOutcome>, Error> {
    let Some(row) = row else { return Ok(None) };
    let Some(token) = row.int(0)? else { return Ok(None) };
    let token = require(0, FencingToken::new(token))?;
    Ok(Some(if token != conversion.from {
        // Each conversion gives the hold another token; an earlier copy of this one may have done it.
        match row.int(1)? == Some(conversion.to.bit().into()) {
            true => ConversionOutcome::Converted(token),
            false => ConversionOutcome::OtherToken(token),
        }
    } else if row.int(3)? == Some(1) {
        ConversionOutcome::Deadlock
    } else {
        ConversionOutcome::Blocked { recheck_after: duration(row.int(2)?) }
    }))
}

/// Decodes the reply to a conversion that expires: a row as [`outcome`] reads it, with the clock in the fifth column; the fourth one is NULL if
/// the conversion had expired.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn timed(
    conversion: &Conversion,
    rows: &[impl Columns],
) -> Result<TimedReply<Option<ConversionOutcome>>, Error> {
    let row = rows.first().ok_or(Error::RowNotFound)?;
    let clock_us = require(4, row.int(4)?)?;
    let is_in_time = row.int(3)?.is_some();
    Ok(TimedReply {
        clock_us,
        outcome: if is_in_time { Some(outcome(conversion, Some(row))?) } else { None },
    })
}

#[async_trait]
impl<D: Dialect> Convert for LeaseBackend<D> {
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome> {
        let dialect = &self.inner.dialect;
        let Some(outcome) = dialect.convert(request, conversion).await? else {
            return Ok(ConversionOutcome::Lost(dialect.loss(request).await?));
        };
        if !conversion.is_upgrade() && matches!(outcome, ConversionOutcome::Converted(_)) {
            // The release of a request without an entry grants the lock to the waiters that can hold it now.
            let without_entry = Request::new(request.name.clone(), request.mode, request.ttl);
            if let Err(error) = dialect.release(&without_entry, self.wakeups()).await {
                tracing::debug!(lock.name = %request.name, %error, "the waiters find out by themselves");
            }
            self.wakeups().notify(request.id);
        }
        Ok(outcome)
    }
}
