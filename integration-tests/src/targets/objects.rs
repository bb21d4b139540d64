//! The tables, keys, nodes and blobs of namespaces, to be counted past the store.

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

    /// Returns the query that counts the tables and routines in the database of a URL.
    pub(super) fn catalog_query(&self, url: &str) -> String {
        let sources: &[(&str, &str)] = match url.split(':').next() {
            Some("postgres") => &[("pg_class", "relname"), ("pg_proc", "proname")],
            Some("mysql") => &[
                ("information_schema.tables", "table_name"),
                ("information_schema.routines", "routine_name"),
            ],
            _ => &[("sqlite_master", "name")],
        };
        let Self { begin, except } = self;
        let count = |(source, name): &(&str, &str)| {
            format!(
                "(SELECT count(*) FROM {source} WHERE {name} LIKE '{begin}%' AND {name} NOT LIKE '{except}%')"
            )
        };
        format!("SELECT {}", sources.iter().map(count).collect::<Vec<_>>().join(" + "))
    }
}
