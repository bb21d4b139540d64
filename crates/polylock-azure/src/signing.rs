//! Shared Key authorization: requests are signed with the account's key.
//!
//! It follows <https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key>. The SDK has no such credential.

use std::{collections::BTreeMap, fmt};

use azure_core::{
    credentials::Secret,
    hmac::hmac_sha256,
    http::{Method, Url},
};

/// The headers of a request, by name in lower case.
pub(crate) type Headers = BTreeMap<String, String>;

/// An account and its key.
#[derive(Clone)]
pub(crate) struct SharedKey {
    account: String,
    key: Secret,
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey").field("account", &self.account).finish_non_exhaustive()
    }
}

impl SharedKey {
    /// Returns `None` if `key` is not valid base64.
    pub(crate) fn new(account: &str, key: &str) -> Option<Self> {
        let shared_key = Self { account: account.to_owned(), key: Secret::new(key.to_owned()) };
        (!key.is_empty() && hmac_sha256("", &shared_key.key).is_ok()).then_some(shared_key)
    }

    /// Returns the header `authorization` of a request with these `headers`.
    pub(crate) fn sign(&self, method: Method, url: &Url, headers: &Headers) -> azure_core::Result<String> {
        let signature = hmac_sha256(&self.text(method, url, headers), &self.key)?;
        Ok(format!("SharedKey {}:{signature}", self.account))
    }

    fn text(&self, method: Method, url: &Url, headers: &Headers) -> String {
        const STANDARD: [&str; 10] = [
            "content-encoding",
            "content-language",
            "content-length",
            "content-md5",
            "content-type",
            // The date is in `x-ms-date`.
            "",
            "if-modified-since",
            "if-match",
            "if-none-match",
            "if-unmodified-since",
        ];
        let mut text = method.as_str().to_owned();
        for name in STANDARD.into_iter().chain(["range"]) {
            let value = headers.get(name).map_or("", String::as_str);
            text.push('\n');
            text.push_str(if name == "content-length" && value == "0" { "" } else { value });
        }
        for (name, value) in
            headers.range("x-ms-".to_owned()..).take_while(|(name, _)| name.starts_with("x-ms-"))
        {
            text.push_str(&format!("\n{name}:{}", value.trim()));
        }
        text.push_str(&format!("\n/{}{}", self.account, url.path()));
        let mut query = BTreeMap::<String, Vec<String>>::new();
        for (key, value) in url.query_pairs() {
            query.entry(key.to_lowercase()).or_default().push(value.into_owned());
        }
        for (key, mut values) in query {
            values.sort();
            text.push_str(&format!("\n{key}:{}", values.join(",")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&str, &str)]) -> Headers {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Uses the example of the documentation.
    #[test]
    fn the_signed_text_is_that_of_the_documentation() {
        let key = SharedKey::new("myaccount", "a2V5").unwrap();
        let url =
            "https://myaccount.blob.core.windows.net/mycontainer?restype=container&comp=metadata&timeout=20";
        let headers =
            headers(&[("x-ms-version", "2015-02-21"), ("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT")]);
        let text = key.text(Method::Get, &url.parse().unwrap(), &headers);
        let wanted = "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n\
                      /myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_content_length_of_zero_is_omitted() {
        let key = SharedKey::new("a", "a2V5").unwrap();
        let url: Url = "http://127.0.0.1:1/a/c/b%20c?comp=lease".parse().unwrap();
        let headers = headers(&[("content-length", "0"), ("if-match", "\"1\""), ("x-ms-meta-b", " v ")]);
        let text = key.text(Method::Put, &url, &headers);
        assert_eq!(text, "PUT\n\n\n\n\n\n\n\n\"1\"\n\n\n\nx-ms-meta-b:v\n/a/a/c/b%20c\ncomp:lease");
    }

    #[test]
    fn an_invalid_key_is_refused_and_debug_output_hides_keys() {
        assert!(SharedKey::new("a", "not base64!").is_none() && SharedKey::new("a", "").is_none());
        let key = SharedKey::new("account", "Y2FuYXJ5").unwrap();
        assert!(!format!("{key:?}").contains("Y2FuYXJ5"));
    }
}
