//! The stores, their servers, and their promises under faults.

mod list;
mod settings;

pub use self::{
    list::{AZURE, CONFIGURATIONS, HTTP_POSTGRES, MARIADB, POSTGRES, REDIS, REDLOCK3, SQLITE, ZOOKEEPER},
    settings::{Configuration, Promise},
};

/// Returns the configuration with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Configuration> {
    CONFIGURATIONS.iter().find(|configuration| configuration.name == name)
}
