//! The version of the file, by which a watch finds changes without reading the tables.

use polylock_core::{BreakNotice, BreakOrder, ClaimOutcome, Mode, Request};

use crate::common::{TestFile, request};

#[tokio::test]
async fn each_change_of_a_lock_by_this_or_another_store_changes_the_version() {
    let file = TestFile::new();
    let (own, other) = (file.store().await, file.store().await);
    let inspect = own.inspect.clone().unwrap();
    let version = async || inspect.version().await.unwrap().unwrap();
    let mut last = version().await;
    assert_eq!(version().await, last, "nothing has changed");
    let [first, second]: [Request; 2] = std::array::from_fn(|_| request("n", Mode::Exclusive));
    let mut granted = Vec::new();
    for store in [&own, &other] {
        let is_first = std::ptr::eq(store, &own);
        let request = if is_first { &first } else { &second };
        granted.push(store.backend.claim(request).await.unwrap());
        let now = version().await;
        assert_ne!(now, last, "a claim, of this store: {is_first}");
        last = now;
    }
    let ClaimOutcome::Granted(grant) = &granted[0] else { panic!("{granted:?}") };
    let order = BreakOrder::new(BreakNotice::default(), [Some(grant.token)]);
    let name = &first.name;
    other.inspect.as_ref().unwrap().break_lock(name, &order).await.unwrap();
    let broken = version().await;
    assert_ne!(broken, last, "a break");
    own.backend.release(&first).await.unwrap();
    assert_ne!(version().await, broken, "a release");
    other.backend.release(&second).await.unwrap();
}
