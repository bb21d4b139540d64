//! ZooKeeper. Acknowledged writes survive a kill, but not a power failure: without the setting `forceSync=yes` it does not sync
//! the disk.

mod ensemble;

use std::{fmt::Write as _, io, path::Path, time::Duration};

use async_trait::async_trait;
use polylock_testkit::Missing;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

pub(super) use self::ensemble::assemble;
pub use self::ensemble::{Ensemble, ensemble, ensemble_with_observer};
use super::{
    installed,
    keeper::Keeper,
    private::{self, PrivateServer, Server, ServerKind},
    redlock, tls,
};
use crate::clock;

/// The user of a server of [`start_sasl`].
pub const USER: &str = "polylock";

/// The password of that user.
pub const PASSWORD: &str = "s3cret";

/// Starts one with `settings`: lines of its `zoo.cfg`, such as `maxSessionTimeout=10000`, or, with a leading `-`, options
/// of its Java, such as `-Dznode.container.checkIntervalMs=100`. The last value of a setting counts.
///
/// Its tick is 200 ms, so a session timeout from 400 ms to two minutes is granted as requested, rounded up to a tick.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(ZooKeeper::of(settings))
}

/// Starts one that accepts only TLS: `server.crt` in its directory is valid for `localhost` and 127.0.0.1, and signed by
/// `ca.crt`. With `ssl.clientAuth=need` it requires a client certificate of the same authority: use `server.crt` and `server.key`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_tls(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(ZooKeeper { access: Access::Tls, ..ZooKeeper::of(settings) })
}

/// Starts one that accepts only clients that authenticate as [`USER`] by SASL with DIGEST-MD5.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_sasl(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(ZooKeeper { access: Access::Sasl, ..ZooKeeper::of(settings) })
}

const ADVICE: &str =
    "install libzookeeper-java and default-jre-headless, or name a server in POLYLOCK_TEST_ZOOKEEPER_URL";

/// The jars in Debian. Each one lists the others that it needs, except for one.
const JARS: [&str; 3] =
    ["/usr/share/java/zookeeper.jar", "/usr/share/java/netty-codec.jar", "/usr/share/java/slf4j-simple.jar"];

/// Options for a quick start and little memory. Nothing is written outside the directory of the server.
const JAVA: [&str; 6] = [
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Xss512k",
    "-Xmx128m",
];

/// Only sessions have short timeouts, because a busy machine may pause.
const SETTINGS: &str = "tickTime=200\n\
    minSessionTimeout=400\n\
    maxSessionTimeout=120000\n\
    initLimit=100\n\
    syncLimit=15\n\
    maxClientCnxns=0\n\
    admin.enableServer=false\n\
    4lw.commands.whitelist=*\n\
    forceSync=no\n\
    preAllocSize=1024\n";

#[derive(Debug, Default)]
pub(super) struct ZooKeeper {
    settings: String,
    options: Vec<String>,
    access: Access,
    /// Its number in an ensemble.
    member: Option<usize>,
}

/// The accepted clients.
#[derive(Debug, Default, Clone, Copy)]
enum Access {
    #[default]
    Anyone,
    Tls,
    Sasl,
}

impl ZooKeeper {
    pub(super) fn of(settings: &[&str]) -> Self {
        let (options, settings): (Vec<&str>, Vec<&str>) =
            settings.iter().partition(|setting| setting.starts_with('-'));
        Self {
            settings: settings.join("\n"),
            options: options.into_iter().map(str::to_owned).collect(),
            ..Self::default()
        }
    }
}

#[async_trait]
impl ServerKind for ZooKeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn users(&self) -> &'static [&'static str] {
        &["zookeeper", "nobody"]
    }

    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let java = installed::program("java", ["/usr/lib/jvm/default-java/bin".into()], ADVICE)?;
        if let Some(jar) = JARS.iter().find(|jar| !Path::new(jar).is_file()) {
            return Err(Missing(format!("{jar} is missing: {ADVICE}")));
        }
        let mut command = vec![java.display().to_string()];
        command.extend(JAVA.map(str::to_owned));
        command.push(format!("-Djava.io.tmpdir={}", keeper.directory().display()));

        keeper.run_as_user(["mkdir", "data"]);
        if let Some(member) = self.member {
            keeper.write("data/myid", &member.to_string());
        }
        let mut config = format!("{SETTINGS}dataDir={}\n", keeper.file("data"));
        if let Access::Tls = self.access {
            config.push_str(&encrypted(keeper, port)?);
        } else {
            writeln!(config, "clientPort={port}\nclientPortAddress=127.0.0.1").ok();
        }
        if let Access::Sasl = self.access {
            config.push_str(
                "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n\
                 enforce.auth.enabled=true\n\
                 enforce.auth.schemes=sasl\n",
            );
            let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
            let users = format!("Server {{ {module} required user_{USER}=\"{PASSWORD}\"; }};\n");
            let users = keeper.write("users.conf", &users);
            command.push(format!("-Djava.security.auth.login.config={users}"));
        }
        config.push_str(&self.settings);
        config.push('\n');

        command.extend(self.options.iter().cloned());
        command.extend(["-cp".to_owned(), JARS.join(":")]);
        command.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".to_owned());
        command.push(keeper.write("zoo.cfg", &config));
        Ok(command)
    }

    fn url(&self, port: u16) -> String {
        match self.access {
            Access::Anyone => format!("zookeeper://127.0.0.1:{port}"),
            Access::Tls => format!("zookeeper+tls://127.0.0.1:{port}"),
            Access::Sasl => {
                format!("zookeeper://{USER}:{PASSWORD}@127.0.0.1:{port}?polylock.auth=sasl-digest-md5")
            }
        }
    }

    async fn data_directory(&self, url: &str, home: &Path) -> Result<String, String> {
        // This command needs no authentication.
        let home = matches!(self.access, Access::Tls).then_some(home);
        let config = ask(url, home, "conf").await.map_err(|error| error.to_string())?;
        config.lines().find_map(|line| line.strip_prefix("dataDir=")).map(str::to_owned).ok_or(config)
    }
}

/// Returns the settings of a server that accepts only TLS at `port`.
fn encrypted(keeper: &mut Keeper, port: u16) -> Result<String, Missing> {
    tls::certify(keeper)?;
    keeper.run_as_user(["sh", "-c", "cat server.key server.crt >server.pem"]);
    let home = keeper.directory().display();
    Ok(format!(
        "secureClientPort={port}\n\
         secureClientPortAddress=127.0.0.1\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={home}/server.pem\n\
         ssl.keyStore.type=PEM\n\
         ssl.trustStore.location={home}/ca.crt\n\
         ssl.trustStore.type=PEM\n\
         ssl.clientAuth=none\n"
    ))
}

/// Returns the number of packets that the server has received since its start, pings and this query included.
///
/// # Panics
/// If it does not reply.
pub async fn packets(server: &Server) -> u64 {
    status(server.url(), "zk_packets_received").await
}

/// Returns this number in the status of the server at `url`.
///
/// # Panics
/// If it does not reply, or has no such number.
pub async fn status(url: &str, key: &str) -> u64 {
    let status = ask_within(clock::TIMEOUT, url, None, "mntr").await;
    let status = status.unwrap_or_else(|error| panic!("mntr: {error}"));
    let pairs = status.lines().filter_map(|line| line.split_once('\t'));
    let number = pairs.filter(|(name, _)| *name == key).find_map(|(_, value)| value.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no {key} in the reply: {status}"))
}

/// The timeout of a four-letter command to a server that may never reply.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends a four-letter command to the server at `url`, and returns the reply; uses TLS if the directory with its certificates is
/// given.
async fn ask(url: &str, certificates: Option<&Path>, word: &str) -> io::Result<String> {
    ask_within(COMMAND_TIMEOUT, url, certificates, word).await
}

/// The same with this timeout.
async fn ask_within(
    limit: Duration,
    url: &str,
    certificates: Option<&Path>,
    word: &str,
) -> io::Result<String> {
    let (_, address, _) = redlock::split_url(url);
    let answer = async {
        let Some(home) = certificates else {
            let mut server = TcpStream::connect(address).await?;
            let (from, to) = server.split();
            return answer(from, to, word).await;
        };
        let (_openssl, from, to) = tls::connect(home, address)?;
        answer(from, to, word).await
    };
    tokio::select! {
        answer = answer => answer,
        () = clock::pause(limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn answer(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    word: &str,
) -> io::Result<String> {
    to.write_all(word.as_bytes()).await?;
    to.flush().await?;
    let mut answer = Vec::new();
    while from.read_buf(&mut answer).await? > 0 {
        // A server that is starting sends this line, and then fails without closing the connection.
        if answer.ends_with(b"not currently serving requests\n") {
            break;
        }
    }
    String::from_utf8(answer).map_err(io::Error::other)
}
