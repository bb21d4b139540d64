//! ZooKeeper, alone. What it acknowledges survives its death, but not a power cut: unless a setting says `forceSync=yes` it
//! leaves the disk to the system.

use std::{fmt::Write as _, io, path::Path, time::Duration};

use async_trait::async_trait;
use polylock_testkit::Missing;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Kind, Private, installed, keeper::Keeper};
use crate::clock;

/// Starts one with `settings`: lines of its `zoo.cfg`, such as `maxSessionTimeout=10000`, or what begins with a `-`, options
/// of its Java, such as `-Dznode.container.checkIntervalMs=100`. The last one counts.
///
/// Its clock ticks every 200 ms, so a session of 400 ms to two minutes is what it is asked for, to the next tick.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn start(settings: &[&str]) -> Result<Private, Missing> {
    super::start(ZooKeeper::of(settings))
}

const ADVICE: &str =
    "install libzookeeper-java and default-jre-headless, or name a server in POLYLOCK_TEST_ZOOKEEPER_URL";

/// Where Debian puts what is made of Java. Each file knows itself which other ones it needs.
const JARS: [&str; 2] = ["/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"];

/// For a quick start and little memory. Nothing is written outside its directory.
const JAVA: [&str; 6] = [
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Xss512k",
    "-Xmx128m",
];

/// A machine under load stops for a while: what is not a session's own time is long.
const SETTINGS: &str = "tickTime=200\n\
    initLimit=100\n\
    syncLimit=15\n\
    minSessionTimeout=400\n\
    maxSessionTimeout=120000\n\
    maxClientCnxns=0\n\
    admin.enableServer=false\n\
    4lw.commands.whitelist=*\n\
    forceSync=no\n\
    preAllocSize=1024\n\
    clientPortAddress=127.0.0.1\n";

#[derive(Debug, Default)]
pub(super) struct ZooKeeper {
    settings: String,
    options: Vec<String>,
}

impl ZooKeeper {
    pub(super) fn of(settings: &[&str]) -> Self {
        let (options, settings): (Vec<&str>, Vec<&str>) =
            settings.iter().partition(|setting| setting.starts_with('-'));
        Self { settings: settings.join("\n"), options: options.into_iter().map(str::to_owned).collect() }
    }
}

#[async_trait]
impl Kind for ZooKeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn users(&self) -> &'static [&'static str] {
        &["zookeeper", "nobody"]
    }

    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let java = installed::program("java", ["/usr/lib/jvm/default-java/bin".into()], ADVICE)?;
        if let Some(jar) = JARS.iter().find(|jar| !Path::new(jar).is_file()) {
            return Err(Missing(format!("there is no {jar}: {ADVICE}")));
        }
        keeper.run_as_user(["mkdir", "data"]);
        let mut config = SETTINGS.to_owned();
        writeln!(config, "dataDir={}\nclientPort={port}\n{}", keeper.file("data"), self.settings).ok();

        let mut command = vec![java.display().to_string()];
        command.extend(JAVA.map(str::to_owned));
        command.push(format!("-Djava.io.tmpdir={}", keeper.directory().display()));
        command.extend(self.options.iter().cloned());
        command.extend(["-cp".to_owned(), JARS.join(":")]);
        command.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".to_owned());
        command.push(keeper.write("zoo.cfg", &config));
        Ok(command)
    }

    fn url(&self, port: u16) -> String {
        format!("zookeeper://127.0.0.1:{port}")
    }

    async fn whereabouts(&self, url: &str, _: &Path) -> Result<String, String> {
        whereabouts(url).await.map_err(|error| error.to_string())
    }
}

/// Where the server at `url` keeps its data, if it serves.
async fn whereabouts(url: &str) -> io::Result<String> {
    let address = url.trim_start_matches("zookeeper://");
    let config = ask(address, "conf").await?;
    let directory = config.lines().find_map(|line| line.strip_prefix("dataDir="));
    directory.map(str::to_owned).ok_or_else(|| io::Error::other(config.clone()))
}

/// How long a server may take to answer a word, before it is asked again.
const WORD: Duration = Duration::from_secs(1);

/// The answer of the server at `address` to one of its words of four letters.
async fn ask(address: &str, word: &str) -> io::Result<String> {
    tokio::select! {
        answer = answer(address, word) => answer,
        () = clock::pause(WORD) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn answer(address: &str, word: &str) -> io::Result<String> {
    let mut server = TcpStream::connect(address).await?;
    server.write_all(word.as_bytes()).await?;
    let mut answer = Vec::new();
    while server.read_buf(&mut answer).await? > 0 {
        // One that is still on its way says so, breaks down over it, and never closes the connection.
        if answer.ends_with(b"not currently serving requests\n") {
            break;
        }
    }
    String::from_utf8(answer).map_err(io::Error::other)
}
