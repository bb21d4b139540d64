//! The data of a server, and the commands on them that the scripts use.

use std::collections::{BTreeMap, BTreeSet};

use super::resp::Reply;

/// The data of a server, and the subscriptions of its connections.
#[derive(Debug, Clone, Default)]
pub struct Database {
    /// The server's clock, in microseconds since 1970.
    pub now_us: i64,
    keys: BTreeMap<Vec<u8>, Key>,
    /// The connections that are subscribed to each channel.
    pub subscribers: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// The messages that were published and are to be sent: the channel and the text.
    pub published: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Clone)]
struct Key {
    value: Value,
    /// The time at which the key expires, in milliseconds since 1970.
    expires_ms: Option<i64>,
}

#[derive(Debug, Clone)]
enum Value {
    Text(Vec<u8>),
    Hash(Fields),
    Set(BTreeMap<Vec<u8>, f64>),
}

type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

type Outcome = Result<Reply, String>;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Returns the value of this kind at `key`, which is created if it is missing.
macro_rules! value_at {
    ($database:expr, $key:expr, $kind:ident) => {
        match &mut $database
            .keys
            .entry($key.clone())
            .or_insert_with(|| Key { value: Value::$kind(Default::default()), expires_ms: None })
            .value
        {
            Value::$kind(value) => value,
            _ => return Err(WRONG_TYPE.to_owned()),
        }
    };
}

impl Database {
    /// Ends the subscriptions of a connection.
    pub fn unsubscribe(&mut self, connection: u64) {
        self.subscribers.retain(|_, connections| {
            connections.remove(&connection);
            !connections.is_empty()
        });
    }

    /// Returns the data without the subscriptions.
    #[must_use]
    pub fn without_subscribers(self) -> Self {
        Self { subscribers: BTreeMap::new(), ..self }
    }

    /// Returns the data that a server has read with a clock that is far ahead.
    #[must_use]
    pub fn without_expiring_keys(mut self) -> Self {
        self.keys.retain(|_, key| key.expires_ms.is_none());
        self
    }

    /// Executes a command.
    pub fn execute(&mut self, command: &[Vec<u8>]) -> Reply {
        self.expire();
        let [name, arguments @ ..] = command else { return Reply::Error("ERR no command".to_owned()) };
        self.run(&String::from_utf8_lossy(name), arguments).unwrap_or_else(Reply::Error)
    }

    fn expire(&mut self) {
        let now_ms = self.now_us / 1000;
        self.keys.retain(|_, key| key.expires_ms.is_none_or(|expires| now_ms <= expires));
    }

    fn run(&mut self, name: &str, arguments: &[Vec<u8>]) -> Outcome {
        Ok(match (name, arguments) {
            ("TIME", []) => {
                let (seconds, micros) = (self.now_us / 1_000_000, self.now_us % 1_000_000);
                Reply::Array(vec![Reply::text(seconds.to_string()), Reply::text(micros.to_string())])
            }
            ("PUBLISH", [channel, message]) => {
                self.published.push((channel.clone(), message.clone()));
                Reply::Int(count(self.subscribers.get(channel).map_or(0, BTreeSet::len)))
            }
            ("EXISTS", keys) => {
                Reply::Int(count(keys.iter().filter(|key| self.keys.contains_key(*key)).count()))
            }
            ("DEL", keys) => {
                Reply::Int(count(keys.iter().filter(|key| self.keys.remove(*key).is_some()).count()))
            }
            ("PTTL", [key]) => Reply::Int(match self.keys.get(key) {
                None => -2,
                Some(key) => key.expires_ms.map_or(-1, |expires| expires - self.now_us / 1000),
            }),
            ("PEXPIRE", [key, ms]) => {
                let expires_ms = Some(self.now_us / 1000 + integer(ms)?);
                Reply::Int(match self.keys.get_mut(key) {
                    Some(key) => {
                        key.expires_ms = expires_ms;
                        1
                    }
                    None => 0,
                })
            }
            ("GET", [key]) => self.get(key)?.map_or(Reply::Nil, Reply::Bulk),
            ("SET", [key, value, options @ ..]) => self.set(key, value, options)?,
            ("HGET", [key, field]) => match self.hash(key)?.and_then(|hash| hash.get(field)) {
                Some(value) => Reply::Bulk(value.clone()),
                None => Reply::Nil,
            },
            ("HGETALL", [key]) => {
                let pairs = self.hash(key)?.into_iter().flatten();
                Reply::Array(
                    pairs
                        .flat_map(|(field, value)| [field, value].map(|it| Reply::Bulk(it.clone())))
                        .collect(),
                )
            }
            ("HSET", [key, field, value]) => {
                let is_new = value_at!(self, key, Hash).insert(field.clone(), value.clone()).is_none();
                Reply::Int(i64::from(is_new))
            }
            ("HDEL", [key, field]) => {
                let was_there = value_at!(self, key, Hash).remove(field).is_some();
                self.remove_if_empty(key);
                Reply::Int(i64::from(was_there))
            }
            ("ZADD", [key, score, member]) => {
                let score = float(score)?;
                Reply::Int(i64::from(value_at!(self, key, Set).insert(member.clone(), score).is_none()))
            }
            ("ZREM", [key, member]) => {
                let was_there = value_at!(self, key, Set).remove(member).is_some();
                self.remove_if_empty(key);
                Reply::Int(i64::from(was_there))
            }
            ("ZREMRANGEBYSCORE", [key, least, greatest]) if least == b"-inf" => {
                let (greatest, set) = (float(greatest)?, value_at!(self, key, Set));
                let before = set.len();
                set.retain(|_, score| *score > greatest);
                let removed = before - set.len();
                self.remove_if_empty(key);
                Reply::Int(count(removed))
            }
            ("ZSCORE", [key, member]) => match self.sorted(key)?.iter().find(|(it, _)| it == member) {
                Some((_, score)) => Reply::text(score.to_string()),
                None => Reply::Nil,
            },
            ("ZRANK", [key, member]) => match self.sorted(key)?.iter().position(|(it, _)| it == member) {
                Some(rank) => Reply::Int(count(rank)),
                None => Reply::Nil,
            },
            ("ZRANGE", [key, first, last, options @ ..]) => {
                let sorted = self.sorted(key)?;
                let index = |text| integer(text).map(|it| if it < 0 { it + count(sorted.len()) } else { it });
                let (first, last) = (index(first)?, index(last)?);
                let in_range = |(at, _): &(usize, _)| (first..=last).contains(&count(*at));
                let mut reply = Vec::new();
                for (_, (member, score)) in sorted.iter().enumerate().filter(in_range) {
                    reply.push(Reply::Bulk(member.clone()));
                    if options.iter().any(|option| option == b"WITHSCORES") {
                        reply.push(Reply::text(score.to_string()));
                    }
                }
                Reply::Array(reply)
            }
            _ => {
                let arguments: Vec<_> = arguments.iter().map(|it| String::from_utf8_lossy(it)).collect();
                return Err(format!("ERR unknown command {name} {}", arguments.join(" ")));
            }
        })
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[Vec<u8>]) -> Outcome {
        let before = self.get(key)?;
        let mut expires_ms = None;
        let mut reply = Reply::Status("OK");
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match &option[..] {
                b"GET" => reply = before.clone().map_or(Reply::Nil, Reply::Bulk),
                b"KEEPTTL" => expires_ms = self.keys.get(key).and_then(|key| key.expires_ms),
                b"PX" => {
                    let ms = options.next().ok_or("ERR syntax error")?;
                    expires_ms = Some(self.now_us / 1000 + integer(ms)?);
                }
                _ => return Err("ERR syntax error".to_owned()),
            }
        }
        self.keys.insert(key.to_vec(), Key { value: Value::Text(value.to_vec()), expires_ms });
        Ok(reply)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        match self.keys.get(key).map(|key| &key.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn hash(&self, key: &[u8]) -> Result<Option<&Fields>, String> {
        match self.keys.get(key).map(|key| &key.value) {
            None => Ok(None),
            Some(Value::Hash(hash)) => Ok(Some(hash)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Returns the members of a set and their scores, by score.
    fn sorted(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, f64)>, String> {
        let set = match self.keys.get(key).map(|key| &key.value) {
            None => return Ok(Vec::new()),
            Some(Value::Set(set)) => set,
            Some(_) => return Err(WRONG_TYPE.to_owned()),
        };
        let mut sorted: Vec<_> = set.iter().map(|(member, score)| (member.clone(), *score)).collect();
        sorted.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        Ok(sorted)
    }

    fn remove_if_empty(&mut self, key: &[u8]) {
        let is_empty = |key: &Key| match &key.value {
            Value::Text(_) => false,
            Value::Hash(hash) => hash.is_empty(),
            Value::Set(set) => set.is_empty(),
        };
        if self.keys.get(key).is_some_and(is_empty) {
            self.keys.remove(key);
        }
    }

    /// Returns the texts of `reply`, in a list of fields or members.
    fn texts(reply: Reply) -> Vec<Vec<u8>> {
        let Reply::Array(values) = reply else { return Vec::new() };
        values
            .into_iter()
            .filter_map(|value| if let Reply::Bulk(text) = value { Some(text) } else { None })
            .collect()
    }

    /// Returns the live keys that begin with `prefix`, without it.
    pub fn names(&mut self, prefix: &str) -> Vec<String> {
        self.expire();
        let names = self.keys.keys().filter_map(|key| key.strip_prefix(prefix.as_bytes()));
        names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    /// Returns the output of a command on `key` that returns texts.
    pub fn read(&mut self, command: &[&str], key: &str) -> Vec<Vec<u8>> {
        let mut words: Vec<Vec<u8>> = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        words.insert(1, key.as_bytes().to_vec());
        match self.execute(&words) {
            Reply::Bulk(text) => vec![text],
            reply => Self::texts(reply),
        }
    }
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn integer(text: &[u8]) -> Result<i64, String> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}

fn float(text: &[u8]) -> Result<f64, String> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| "ERR value is not a valid float".to_owned())
}
