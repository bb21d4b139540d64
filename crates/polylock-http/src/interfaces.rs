//! The optional interfaces of the store: conversions, holds that end later, raised tokens, and records of jobs.

use std::time::Duration;

use async_trait::async_trait;
use polylock_core::{
    Clock, Conversion, ConversionOutcome, Convert, FencingToken, KeepRecord, LockName, LostReason, Operation,
    Park, RaiseToken, Record, Release, Request, Result, StoredRecord, SystemClock,
};
use polylock_protocol::{
    ConvertBody, ConvertReply, NameBody, ParkBody, RaiseBody, RaiseReply, RecordReply, ReleaseReply,
    WriteRecordBody, paths,
};

use crate::backend::{HttpBackend, invalid};

#[async_trait]
impl Convert for HttpBackend {
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome> {
        let (body, limit) = (ConvertBody::new(request, conversion), self.limit(request.ttl));
        let (reply, _): (ConvertReply, bool) =
            self.servers.send_in_time(Operation::Convert, paths::CONVERT, &body, limit).await?;
        (&reply).try_into().map_err(|error| invalid(Operation::Convert, error))
    }
}

#[async_trait]
impl Park for HttpBackend {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let (body, limit) = (ParkBody::new(request, token, left), self.limit(request.ttl));
        let sent = SystemClock.now();
        let (reply, is_repeated): (ReleaseReply, bool) =
            self.servers.send_in_time(Operation::Renew, paths::PARK, &body, limit).await?;
        let outcome = (&reply).try_into().map_err(|error| invalid(Operation::Renew, error))?;
        Ok(match outcome {
            // An earlier attempt has parked the hold, which has ended since.
            Release::Lost(LostReason::Gone) if is_repeated && SystemClock.now() >= sent + left => {
                Release::Released
            }
            outcome => outcome,
        })
    }
}

#[async_trait]
impl RaiseToken for HttpBackend {
    async fn raise(&self, request: &Request, to: FencingToken) -> Result<FencingToken> {
        let (body, limit) = (RaiseBody { request: request.into(), to: to.get() }, self.limit(request.ttl));
        let reply: RaiseReply = self.servers.send(Operation::Claim, paths::RAISE, &body, limit).await?;
        reply.token().map_err(|error| invalid(Operation::Claim, error))
    }
}

#[async_trait]
impl KeepRecord for HttpBackend {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        let (body, limit) = (NameBody::from(name), self.servers.operation_timeout);
        let reply: RecordReply =
            self.servers.send(Operation::Record, paths::READ_RECORD, &body, limit).await?;
        (&reply).try_into().map_err(|error| invalid(Operation::Record, error))
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        let (body, limit) = (WriteRecordBody::new(name, record, keep), self.servers.operation_timeout);
        self.servers.send(Operation::Record, paths::WRITE_RECORD, &body, limit).await
    }
}
