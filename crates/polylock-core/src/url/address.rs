//! The address in a URL: the user, the servers and the path.

use std::fmt;

use percent_encoding::percent_decode_str;

use super::store_url::StoreUrl;

/// The address in a URL, `//user:password@host1:port,host2:port/path`. Each part is as written, percent-encoded.
///
/// The errors of its methods contain no part of the URL. [`StoreUrl::problem`] turns them into a `ConfigError`.
///
/// ```
/// use polylock_core::url::{Address, Host, StoreUrl};
///
/// let url = StoreUrl::parse("example://me:p%40ss@h1:99,[::1]/a/b").unwrap();
/// let address = Address::parse(&url).unwrap();
/// assert_eq!(address.credentials(), Ok(Some(("me".to_owned(), "p@ss".to_owned()))));
/// let servers = address.servers().unwrap();
/// assert_eq!(servers, [Host { name: "h1", port: Some("99") }, Host { name: "[::1]", port: None }]);
/// assert_eq!(servers[1].with_port(7), Ok("[::1]:7".to_owned()));
/// assert_eq!(address.path, "a/b");
/// ```
#[derive(Clone, Copy)]
pub struct Address<'u> {
    /// The text before the `@`, if there is one: the user and the password.
    pub user: Option<&'u str>,
    /// The servers.
    pub servers: &'u str,
    /// The text after the slash that follows the servers; empty without one.
    pub path: &'u str,
}

impl fmt::Debug for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("servers", &self.servers)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<'u> Address<'u> {
    /// Returns the address in `url`.
    ///
    /// # Errors
    /// A message, if the URL has no `//`.
    pub fn parse(url: &'u StoreUrl) -> Result<Self, &'static str> {
        let rest = url.rest().strip_prefix("//").ok_or("names no server")?;
        // The *last* `@` counts: a password may contain one that was not encoded.
        let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self { user, servers, path })
    }

    /// Returns the user and the password, percent-decoded, if there is a user.
    ///
    /// # Errors
    /// A message, if there is no password, or if one of them is not UTF-8.
    pub fn credentials(&self) -> Result<Option<(String, String)>, &'static str> {
        let Some(user) = self.user else { return Ok(None) };
        let (user, password) = user.split_once(':').ok_or("names a user without a password")?;
        Ok(Some((decode(user)?, decode(password)?)))
    }

    /// Returns the servers.
    ///
    /// # Errors
    /// A message, if a server has no host, or if the address contains a `#`.
    pub fn servers(&self) -> Result<Vec<Host<'u>>, &'static str> {
        if [self.user.unwrap_or_default(), self.servers, self.path].iter().any(|part| part.contains('#')) {
            return Err("contains a #, which must be percent-encoded in a user or password");
        }
        Host::parse_list(self.servers)
    }

    /// Returns the path, percent-decoded.
    ///
    /// # Errors
    /// A message, if it is not UTF-8.
    pub fn decoded_path(&self) -> Result<String, &'static str> {
        decode(self.path)
    }
}

fn decode(text: &str) -> Result<String, &'static str> {
    percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| "is not valid UTF-8")
}

/// A server in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host<'u> {
    /// The name or the IP address; an IPv6 address is in brackets.
    pub name: &'u str,
    /// The port, as written.
    pub port: Option<&'u str>,
}

impl<'u> Host<'u> {
    /// Returns the servers of a list such as `h1,h2:99,[::1]`.
    ///
    /// # Errors
    /// A message, if a server has no host.
    pub fn parse_list(list: &'u str) -> Result<Vec<Self>, &'static str> {
        list.split(',').map(Self::parse).collect()
    }

    fn parse(text: &'u str) -> Result<Self, &'static str> {
        let (name, port) = match text.rsplit_once(':') {
            // The last colon of `[::1]` does not precede a port.
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (text, None),
        };
        let is_bracketed = name.starts_with('[') && name.ends_with(']');
        if name.is_empty() || (name.contains(':') && !is_bracketed) {
            return Err("names a server without a host");
        }
        Ok(Self { name, port })
    }

    /// Returns the server as `host:port`, with `default` if no port is given.
    ///
    /// # Errors
    /// A message, if the port is not a number from 1 to 65535.
    pub fn with_port(&self, default: u16) -> Result<String, &'static str> {
        let port = self.port.map_or(Ok(default), str::parse);
        let port = port.ok().filter(|port| *port > 0).ok_or("has an invalid port")?;
        Ok(format!("{}:{port}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Vec<String>, &'static str> {
        let url = StoreUrl::parse(url).unwrap();
        let address = Address::parse(&url)?;
        address.credentials()?;
        address.servers()?.iter().map(|host| host.with_port(7)).collect()
    }

    #[test]
    fn servers_have_a_host_and_a_port() {
        assert_eq!(
            parse("x://a,b:1,[::1],[::1]:2/p"),
            Ok(["a:7", "b:1", "[::1]:7", "[::1]:2"].map(str::to_owned).into())
        );
        for url in ["x://", "x:///p", "x://a,,b", "x://:1", "x://a:1:2", "x://::1"] {
            assert_eq!(parse(url), Err("names a server without a host"), "{url}");
        }
        for url in ["x://a:", "x://a:0", "x://a:port", "x://a:65536"] {
            assert_eq!(parse(url), Err("has an invalid port"), "{url}");
        }
        assert_eq!(parse("x:a"), Err("names no server"));
    }

    #[test]
    fn a_password_ends_at_the_last_at_sign() {
        let url = StoreUrl::parse("x://u%40v:p@/:,@h/a%2Fb").unwrap();
        let address = Address::parse(&url).unwrap();
        assert_eq!((address.servers, address.decoded_path().as_deref()), ("h", Ok("a/b")));
        assert_eq!(address.credentials(), Ok(Some(("u@v".to_owned(), "p@/:,".to_owned()))));
        assert!(!format!("{address:?}").contains("p@"));
        assert_eq!(parse("x://u@h"), Err("names a user without a password"));
        assert_eq!(parse("x://u:%FF@h"), Err("is not valid UTF-8"));
        for url in ["x://u:p#q@h", "x://h#f", "x://h/p#f"] {
            assert!(parse(url).unwrap_err().contains('#'), "{url}");
        }
    }
}
