//! The script of a fence uses keys of one slot only.

use polylock_redis::FENCE;

use super::shared;

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_and_its_keys_are_in_one_slot() {
    let (fence, key) = ("{fenced/orders/42}:fence", "{fenced/orders/42}");
    let slot: u16 = shared().ask(0, &["CLUSTER", "KEYSLOT", fence]).await;
    let primary = shared().primary_of(slot, 0).await.unwrap();
    for token in ["7", "7", "8"] {
        let reply: String =
            shared().ask(primary, &["EVAL", FENCE, "2", fence, key, token, "SET", key, token]).await;
        assert_eq!(reply, "OK");
    }
    let state: String = shared().ask(primary, &["GET", key]).await;
    assert_eq!(state, "8");
}
