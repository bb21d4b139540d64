//! The interpreter of the scripts, with the functions that a server provides.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    mem,
    rc::Rc,
    sync::Arc,
};

use mlua::{Function, IntoLua, Lua, MultiValue, String as LuaString, Table, Value};

use super::{
    database::Database,
    packed::Packed,
    resp::{Command, Reply},
};

/// The scripts of a server, by their checksums.
#[derive(Debug, Default)]
pub struct Scripts(BTreeMap<String, Script>);

/// Texts in scripts, and those that replace them.
pub type Changes = &'static [(&'static str, &'static str)];

/// A script: its text, and its name in the timeline.
#[derive(Debug, Clone)]
pub struct Script {
    text: Arc<str>,
    /// The checksum of the text, which may be a changed one.
    checksum: Arc<str>,
    /// The word for its purpose.
    pub purpose: &'static str,
}

/// The purposes of scripts, by the beginning of the comment that describes them.
const PURPOSES: [(&str, &str); 14] = [
    ("-- Grants the lock if it is the request's turn", "claim"),
    ("-- Releases the lock if it is held", "release"),
    ("-- Extends live holds", "keep-alive"),
    ("-- Gives this server's vote", "propose"),
    ("-- Withdraws this server's vote", "withdraw"),
    ("-- Extends the votes", "renew"),
    ("-- Returns the membership", "member"),
    ("-- Breaks the holds", "break"),
    ("-- Parks a hold", "park"),
    ("-- Parks the vote", "park"),
    ("-- Refuses proposals", "refuse"),
    ("-- Breaks the vote", "break"),
    ("-- Returns the holders", "inspect"),
    ("-- Returns the request", "inspect"),
];

impl Scripts {
    /// Adds a script, with `changes`, and returns its checksum.
    pub fn load(&mut self, text: &str, changes: Changes) -> String {
        let checksum = redis::Script::new(text).get_hash().to_owned();
        let purpose = PURPOSES.iter().find(|(begin, _)| text.contains(begin)).map_or("script", |(_, it)| *it);
        let text = changes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        let changed = redis::Script::new(&text);
        let script = Script { text: text.into(), checksum: changed.get_hash().into(), purpose };
        self.0.insert(checksum.clone(), script);
        checksum
    }

    /// Returns the script with this checksum.
    #[must_use]
    pub fn get(&self, checksum: &[u8]) -> Option<&Script> {
        self.0.get(std::str::from_utf8(checksum).ok()?)
    }
}

impl Script {
    /// Executes the script on `database`. The arguments are the number of keys, the keys, and the other arguments.
    pub fn run(&self, arguments: &[Vec<u8>], database: &mut Database) -> Reply {
        INTERPRETER.with(|interpreter| interpreter.run(self, arguments, database)).unwrap_or_else(|error| {
            Reply::Error(format!("ERR {}", error.to_string().replace(['\r', '\n'], " ")))
        })
    }
}

thread_local! {
    static INTERPRETER: Interpreter = Interpreter::new().expect("the library of the interpreter is complete");
}

/// The interpreter of a thread. The scripts of all servers run in it: they have no state of their own.
struct Interpreter {
    lua: Lua,
    /// The compiled scripts, by the checksums of their texts.
    compiled: RefCell<HashMap<Arc<str>, Function>>,
    /// The data of the server with the running script.
    database: Rc<RefCell<Database>>,
}

impl Interpreter {
    fn new() -> mlua::Result<Self> {
        let (lua, database) = (Lua::new(), Rc::<RefCell<Database>>::default());
        let redis = lua.create_table()?;
        let data = database.clone();
        redis.set(
            "call",
            lua.create_function(move |lua, arguments: MultiValue| {
                let command: Command = arguments.into_iter().map(argument).collect::<mlua::Result<_>>()?;
                let reply = data.borrow_mut().execute(&command);
                into_lua(lua, &reply)
            })?,
        )?;
        let error = |lua: &Lua, text: LuaString| {
            let error = lua.create_table()?;
            error.set("err", text)?;
            Ok(error)
        };
        redis.set("error_reply", lua.create_function(error)?)?;
        lua.globals().set("redis", redis)?;
        let packer = lua.create_table()?;
        packer.set(
            "pack",
            lua.create_function(|lua, value: Value| {
                let mut out = Vec::new();
                pack(&value)?.pack(&mut out);
                lua.create_string(out)
            })?,
        )?;
        packer.set(
            "unpack",
            lua.create_function(|lua, text: LuaString| {
                let packed = Packed::unpack(&mut &*text.as_bytes());
                unpack(lua, &packed.ok_or_else(|| mlua::Error::runtime("damaged value"))?)
            })?,
        )?;
        lua.globals().set("cmsgpack", packer)?;
        let bits = lua.create_table()?;
        bits.set("band", lua.create_function(|_, (a, b): (i64, i64)| Ok(a & b))?)?;
        bits.set("bor", lua.create_function(|_, (a, b): (i64, i64)| Ok(a | b))?)?;
        lua.globals().set("bit", bits)?;
        Ok(Self { lua, compiled: RefCell::default(), database })
    }

    fn run(&self, script: &Script, arguments: &[Vec<u8>], database: &mut Database) -> mlua::Result<Reply> {
        let [keys, arguments @ ..] = arguments else { return Err(mlua::Error::runtime("no number of keys")) };
        let keys = std::str::from_utf8(keys).ok().and_then(|keys| keys.parse().ok()).unwrap_or(usize::MAX);
        let (keys, arguments) =
            arguments.split_at_checked(keys).ok_or_else(|| mlua::Error::runtime("too few keys"))?;
        let table = |texts: &[Vec<u8>]| {
            let table = self.lua.create_table_with_capacity(texts.len(), 0)?;
            for (index, text) in texts.iter().enumerate() {
                table.raw_set(index + 1, self.lua.create_string(text)?)?;
            }
            Ok::<Table, mlua::Error>(table)
        };
        self.lua.globals().raw_set("KEYS", table(keys)?)?;
        self.lua.globals().raw_set("ARGV", table(arguments)?)?;
        let known = self.compiled.borrow().get(&script.checksum).cloned();
        let function = match known {
            Some(function) => function,
            None => {
                let function = self.lua.load(&*script.text).into_function()?;
                self.compiled.borrow_mut().insert(script.checksum.clone(), function.clone());
                function
            }
        };
        mem::swap(database, &mut self.database.borrow_mut());
        let outcome = function.call::<Value>(());
        mem::swap(database, &mut self.database.borrow_mut());
        from_lua(&outcome?)
    }
}

/// Converts an argument of `redis.call` as a server does.
fn argument(value: Value) -> mlua::Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        // A server formats with 17 digits.
        Value::Number(number) => Ok(number.to_string().into_bytes()),
        other => Err(mlua::Error::runtime(format!("an argument of redis.call is a {}", other.type_name()))),
    }
}

fn into_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    match reply {
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Int(number) => number.into_lua(lua),
        Reply::Bulk(text) => lua.create_string(text)?.into_lua(lua),
        Reply::Status(text) => {
            let status = lua.create_table()?;
            status.set("ok", *text)?;
            status.into_lua(lua)
        }
        Reply::Array(values) | Reply::Map(values) | Reply::Push(values) => {
            let values = values.iter().map(|value| into_lua(lua, value)).collect::<mlua::Result<Vec<_>>>()?;
            lua.create_sequence_from(values)?.into_lua(lua)
        }
        Reply::Error(error) => Err(mlua::Error::runtime(error)),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a server cuts off fractions, too")]
fn from_lua(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Nil | Value::Boolean(false) => Reply::Nil,
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(number) => Reply::Int(*number),
        Value::Number(number) => Reply::Int(*number as i64),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Table(table) => {
            if let Some(error) = table.raw_get::<Option<LuaString>>("err")? {
                return Ok(Reply::Error(error.to_string_lossy()));
            }
            let values = table.sequence_values::<Value>();
            Reply::Array(values.map(|value| from_lua(&value?)).collect::<mlua::Result<_>>()?)
        }
        other => return Err(mlua::Error::runtime(format!("the result is a {}", other.type_name()))),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a number of a script is a float")]
fn pack(value: &Value) -> mlua::Result<Packed> {
    Ok(match value {
        Value::Integer(number) => Packed::Number(*number as f64),
        Value::Number(number) => Packed::Number(*number),
        Value::String(text) => Packed::Text(text.as_bytes().to_vec()),
        Value::Table(table) => {
            let values = table.sequence_values::<Value>();
            Packed::Array(values.map(|value| pack(&value?)).collect::<mlua::Result<_>>()?)
        }
        other => return Err(mlua::Error::runtime(format!("can't pack a {}", other.type_name()))),
    })
}

fn unpack(lua: &Lua, packed: &Packed) -> mlua::Result<Value> {
    match packed {
        Packed::Number(number) => Ok(Value::Number(*number)),
        Packed::Text(text) => lua.create_string(text)?.into_lua(lua),
        Packed::Array(values) => {
            let values = values.iter().map(|value| unpack(lua, value)).collect::<mlua::Result<Vec<_>>>()?;
            lua.create_sequence_from(values)?.into_lua(lua)
        }
    }
}
