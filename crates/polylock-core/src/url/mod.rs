//! Store URLs and the settings in them.

mod address;
mod certificates;
#[doc(hidden)]
pub mod checks;
pub mod driver_keys;
mod keys;
mod setters;
mod store_url;

pub use address::{Address, Host};
#[cfg(feature = "tls")]
pub use certificates::install_crypto_provider;
pub use certificates::{Certificates, Pem, is_untrusted, tls_is_not_compiled_in};
pub use keys::{Keys, nearest};
pub use store_url::{PUBLIC_KEYS, StoreUrl, read};
