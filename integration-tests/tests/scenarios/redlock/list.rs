//! Listing many locks.

use polylock_integration_tests::clock::now;
use redis::Script;

use super::setup::Setup;

/// Far more commands than a server executes within the time limit of one command.
const MANY: usize = 9000;

/// Votes in the store's format, of unknown requests.
const VOTES: &str = "
    for i = 1, ARGV[1] do
        local entry = cmsgpack.pack({i, 0, 'owner', 'label'})
        redis.call('SET', KEYS[1] .. i, string.rep('x', 16) .. entry, 'PX', 60000)
    end";

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_thousands_of_locks_is_complete() {
    let setup = Setup::private_direct(3);
    let options = "polylock.restart=trust&polylock.operation_timeout=600ms";
    let locks = polylock::Locks::connect(&setup.direct_url(options)).await.unwrap();
    for node in &setup.nodes {
        let mut node = redis::Client::open(node.url()).unwrap().get_connection().unwrap();
        Script::new(VOTES).key("{polylock}:r:n").arg(MANY).invoke::<()>(&mut node).unwrap();
    }
    let began = now();
    let listed = locks.list("").await.unwrap();
    println!("{MANY} locks in {:.1?}", now().since(began));
    assert_eq!(listed.len(), MANY);
    assert!(listed.iter().all(|lock| lock.holders.len() == 1) && listed.is_sorted_by_key(|lock| &lock.name));
}
