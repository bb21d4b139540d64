//! Fuzz targets: the grants and requests that a reply contains as texts.

use polylock_core::wakeups::WaiterId;

use super::watch;
use crate::engine::{columns::Columns, fuzz::Row, rows::hex};

polylock_fuzz::fuzz_targets!(tests: grants);

fn grants(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let rows: Vec<_> = text.lines().map(Row::parse).collect();
    let Ok(reply) = watch::read(&rows) else { return };
    let count = |column| rows[0].text(column).unwrap().unwrap_or_default().split_terminator(',').count();
    assert_eq!((reply.grants.len(), reply.removed.len()), (count(0), count(1)));
    let grants = reply.grants.iter().map(|grant| {
        let WaiterId::Request(request) = grant.waiter else { panic!("{grant:?}") };
        let (token, lease) = (grant.grant.token, grant.grant.lease.as_micros());
        format!("{} {} {token} {lease},", hex(&request.to_bytes()), grant.position)
    });
    let removed = reply.removed.iter().map(|request| format!("{},", hex(&request.to_bytes())));
    let (grants, removed) = (grants.collect::<String>(), removed.collect::<String>());
    let nearest = reply.nearest.map_or("~".to_owned(), |nearest| nearest.to_string());
    let again = format!("{grants}|{removed}|{}|{nearest}", u8::from(reply.changed));
    assert_eq!(watch::read(&[Row::parse(&again)]).unwrap(), reply, "{again}");
}
