//! Conversions of holds to other modes.

use async_trait::async_trait;
use polylock_core::{
    Conversion, ConversionOutcome, Convert, FencingToken, LostReason, Operation, Request, Result,
};

use super::backend::{RedisBackend, break_reason, from_micros};

#[async_trait]
impl Convert for RedisBackend {
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome> {
        let id = request.id.to_bytes();
        let conflicts = conversion.to.conflicts();
        let in_way = if conversion.is_upgrade() { conflicts } else { 0 };
        let waiting = if conversion.waits { conversion.waiting_bits() } else { 0 };
        // Another process may adopt the hold with the token that it has.
        let invoke = |expiry: i64| {
            let mut call = self.context.scripts.call(&self.context.scripts.convert, &request.name);
            call.arg(&id).arg(conversion.from.get()).arg(conversion.to.bit()).arg(conflicts);
            call.arg(in_way).arg(conversion.held.conflicts()).arg(waiting).arg(expiry);
            call
        };
        let reply =
            self.call_in_time(&request.name, Operation::Convert, self.timeout(request), &invoke).await;
        let reply = reply.outcome?;
        if let Some(reason) = break_reason(&reply) {
            return Ok(ConversionOutcome::Lost(reason));
        }
        let unexpected = || self.servers.unexpected(Operation::Convert, "an unknown outcome of a conversion");
        let (outcome, number): (i64, i64) = self.servers.read(Operation::Convert, reply)?;
        let token = || FencingToken::new(number).ok_or_else(unexpected);
        Ok(match outcome {
            0 => ConversionOutcome::Lost(LostReason::Gone),
            1 => ConversionOutcome::Converted(token()?),
            2 => ConversionOutcome::OtherToken(token()?),
            3 => ConversionOutcome::Blocked { recheck_after: from_micros(number) },
            4 => ConversionOutcome::Deadlock,
            _ => return Err(unexpected()),
        })
    }
}
