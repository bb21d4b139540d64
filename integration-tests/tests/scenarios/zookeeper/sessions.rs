//! Another connection of a store's session, with requests that the store did not send.

use std::time::Duration;

use polylock_integration_tests::proxy::Proxy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use zookeeper_client::Client;

use super::Namespace;

const CLOSE: i32 = -11;
const CREATE: i32 = 15;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

/// A session of the store.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    id: i64,
    /// The prefix of the names of its nodes.
    prefix: String,
}

impl Session {
    /// Returns the session of the only request of this lock.
    pub(crate) async fn of_holder(raw: &Client, namespace: &Namespace, lock: &str) -> Self {
        let directory = format!("{}/{lock}", namespace.root);
        let nodes = raw.list_children(&directory).await.unwrap();
        let [node] = &nodes[..] else { panic!("one request: {nodes:?}") };
        let stat = raw.check_stat(&format!("{directory}/{node}")).await.unwrap();
        Self { id: stat.unwrap().ephemeral_owner, prefix: node[..16].to_owned() }
    }

    /// Returns the session's password, which the servers derive from its id.
    fn password(&self) -> [u8; 16] {
        const MULTIPLIER: u64 = 0x5_DEEC_E66D;
        const MASK: u64 = (1 << 48) - 1;
        let mut state = (self.id.cast_unsigned() ^ 0xB341_5C00 ^ MULTIPLIER) & MASK;
        let mut password = [0; 16];
        for part in password.chunks_mut(4) {
            state = state.wrapping_mul(MULTIPLIER).wrapping_add(11) & MASK;
            let number = u32::try_from(state >> 16).unwrap();
            part.copy_from_slice(&number.to_le_bytes());
        }
        password
    }

    /// Ends the session. Its own client then reconnects and is refused.
    pub(crate) async fn close(&self, namespace: &Namespace, proxy: &Proxy) {
        self.send(namespace, proxy, CLOSE, &[]).await;
    }

    /// Creates an orphaned node in the session of the store behind `proxy`, ahead of all later requests.
    pub(crate) async fn plant(&self, namespace: &Namespace, proxy: &Proxy, lock: &str) {
        let mut body = Vec::new();
        text(&mut body, &format!("{}/{lock}/{}{:016x}_EX_", namespace.root, self.prefix, 7));
        text(&mut body, "30000\nghost\n");
        // The ACL: all permissions for anyone.
        body.extend([1, 31].map(i32::to_be_bytes).concat());
        text(&mut body, "world");
        text(&mut body, "anyone");
        body.extend(EPHEMERAL_SEQUENTIAL.to_be_bytes());
        self.send(namespace, proxy, CREATE, &body).await;
    }

    /// Connects as the session, in place of the store behind `proxy`, and sends one request, which must succeed.
    async fn send(&self, namespace: &Namespace, proxy: &Proxy, kind: i32, body: &[u8]) {
        // The servers close the store's connection; its next connection would close this one.
        tokio::task::block_in_place(|| proxy.refuse(true));
        self.exchange(namespace, kind, body).await;
        tokio::task::block_in_place(|| proxy.refuse(false));
    }

    async fn exchange(&self, namespace: &Namespace, kind: i32, body: &[u8]) {
        let mut server = TcpStream::connect(&namespace.servers).await.unwrap();
        let mut connect = Vec::new();
        connect.extend(0_i32.to_be_bytes());
        connect.extend(0_i64.to_be_bytes());
        connect.extend(i32::try_from(Duration::from_secs(30).as_millis()).unwrap().to_be_bytes());
        connect.extend(self.id.to_be_bytes());
        connect.extend(16_i32.to_be_bytes());
        connect.extend(self.password());
        connect.push(0);
        let request = [&1_i32.to_be_bytes()[..], &kind.to_be_bytes(), body].concat();
        for message in [connect, request] {
            server.write_all(&framed(&message)).await.unwrap();
        }
        let connected = reply(&mut server).await;
        assert_eq!(connected[8..16], self.id.to_be_bytes(), "another session");
        if kind == CLOSE {
            // The servers may close the connection before they reply.
            server.read_to_end(&mut Vec::new()).await.unwrap();
            return;
        }
        let response = reply(&mut server).await;
        assert_eq!(response[..4], 1_i32.to_be_bytes());
        assert_eq!(response[12..16], 0_i32.to_be_bytes(), "the request failed");
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&i32::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

fn text(body: &mut Vec<u8>, text: &str) {
    body.extend(framed(text.as_bytes()));
}

async fn reply(server: &mut TcpStream) -> Vec<u8> {
    let length = server.read_i32().await.unwrap();
    let mut message = vec![0; usize::try_from(length).unwrap()];
    server.read_exact(&mut message).await.unwrap();
    message
}
