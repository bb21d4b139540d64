//! The statements that a store sends: calls of its routines.

/// A call of a routine.
#[derive(Debug)]
pub struct Call<'a> {
    /// The routine, without the prefix of its name and its version.
    pub routine: &'a str,
    /// The arguments.
    pub arguments: Vec<Argument>,
}

/// An argument.
#[derive(Debug, Clone)]
pub enum Argument {
    /// A number.
    Int(i64),
    /// Bytes, or a text.
    Bytes(Vec<u8>),
}

impl Argument {
    /// Returns a number; 0 for bytes.
    #[must_use]
    pub const fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Bytes(_) => 0,
        }
    }

    /// Returns bytes; none for a number.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Int(_) => &[],
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Decodes hexadecimal digits.
#[must_use]
pub fn unhex(digits: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

impl Call<'_> {
    /// Returns the request that a release releases; `None` for another call.
    #[must_use]
    pub fn released(&self) -> Option<&[u8]> {
        (self.routine == "release").then(|| self.arguments.get(1).map(Argument::bytes))?
    }
}

/// The entries of a batch: each begins with the length of its name.
#[derive(Debug)]
pub struct Batch<'a>(pub &'a [u8]);

impl<'a> Batch<'a> {
    /// Takes the next bytes.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at_checked(count).unwrap_or((self.0, &[]));
        self.0 = rest;
        taken
    }

    /// Takes the name at the begin of the next entry; `None` at the end.
    pub fn name(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1).first().copied()?;
        Some(self.take(length.into()))
    }

    /// Takes the id of a request.
    pub fn request(&mut self) -> Vec<u8> {
        self.take(16).to_vec()
    }

    /// Takes the slot of `request`, from a byte that is 1 if it is exclusive.
    pub fn slot(&mut self, request: &[u8]) -> Vec<u8> {
        if self.take(1) == [1] { Vec::new() } else { request.to_vec() }
    }

    /// Takes a number of eight bytes.
    pub fn number(&mut self) -> i64 {
        self.take(8).iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
    }
}
