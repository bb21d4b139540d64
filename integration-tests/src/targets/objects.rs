//! The tables, keys, nodes and blobs of namespaces, counted past the store.

use polylock_core::url::StoreUrl;

use super::{
    blobs, keys,
    namespace::{Entries, Namespace},
    znodes,
};

/// The begin of the names of a namespace's objects.
#[derive(Debug, Clone, Copy)]
pub struct Objects<'a> {
    /// Names that begin with this are counted,
    pub begin: &'a str,
    /// except for those that begin with this.
    pub except: &'a str,
}

impl Objects<'_> {
    /// Returns true if an object with this name is counted.
    pub(super) fn contains(&self, name: &str) -> bool {
        name.starts_with(self.begin) && !name.starts_with(self.except)
    }
}

impl Namespace {
    /// Counts objects in the store of this namespace; `None` if the test can't read them.
    ///
    /// # Panics
    /// If the server does not reply.
    pub async fn count(&self, objects: Objects<'_>) -> Option<u64> {
        let counted = match &self.entries {
            Entries::Uncounted => return None,
            Entries::Rows(_) => {
                self.rows(&self.catalog_query(objects)).await.map_err(|error| error.to_string())
            }
            Entries::Keys(_, server) => {
                keys::count(std::slice::from_ref(server), objects).await.map_err(|error| error.to_string())
            }
            Entries::RedlockKeys(_, nodes) | Entries::ClusterKeys(_, nodes) => {
                keys::count(nodes, objects).await.map_err(|error| error.to_string())
            }
            Entries::Znodes(_, servers) => {
                znodes::count(servers, objects).await.map_err(|error| error.to_string())
            }
            Entries::Blobs(_, server) => {
                blobs::count(server, objects).await.map_err(|error| error.to_string())
            }
        };
        Some(counted.unwrap_or_else(|error| panic!("can't count the objects: {error}")))
    }

    /// Returns the query that counts the tables and routines.
    fn catalog_query(&self, Objects { begin, except }: Objects<'_>) -> String {
        let url = StoreUrl::parse(&self.url);
        let sources: &[(&str, &str)] = match url.as_ref().map(StoreUrl::scheme) {
            Ok("postgres") => &[("pg_class", "relname"), ("pg_proc", "proname")],
            Ok("mysql") => &[
                ("information_schema.tables", "table_name"),
                ("information_schema.routines", "routine_name"),
            ],
            _ => &[("sqlite_master", "name")],
        };
        let count = |(source, name): &(&str, &str)| {
            format!(
                "(SELECT count(*) FROM {source} WHERE {name} LIKE '{begin}%' AND {name} NOT LIKE '{except}%')"
            )
        };
        format!("SELECT {}", sources.iter().map(count).collect::<Vec<_>>().join(" + "))
    }
}
