/// Defines setters of a configuration. Each replaces a field, and leaves the check of the value to the code that opens the store.
///
/// ```
/// use std::time::Duration;
///
/// pub struct Config {
///     timeout: Duration,
/// }
///
/// impl Config {
///     polylock_core::setters! {
///         /// The time limit of an operation.
///         operation_timeout(timeout: Duration) => timeout;
///     }
/// }
///
/// let config = Config { timeout: Duration::ZERO }.operation_timeout(Duration::from_secs(5));
/// assert_eq!(config.timeout, Duration::from_secs(5));
/// ```
#[macro_export]
macro_rules! setters {
    ($($(#[$attribute:meta])* $name:ident($value:ident: $type:ty) => $($field:ident).+;)*) => {$(
        $(#[$attribute])*
        #[must_use]
        pub const fn $name(mut self, $value: $type) -> Self {
            self.$($field).+ = $value;
            self
        }
    )*};
}
