//! The values that scripts pack into a text, in a subset of MessagePack: numbers, texts, and arrays of them.

/// A value that a script has packed.
#[derive(Debug, Clone, PartialEq)]
pub enum Packed {
    /// A number.
    Number(f64),
    /// Bytes.
    Text(Vec<u8>),
    /// Several values.
    Array(Vec<Self>),
}

const NUMBER: u8 = 0xcb;
const TEXT: u8 = 0xdb;
const ARRAY: u8 = 0xdd;

impl Packed {
    /// Appends the packed value to `out`.
    pub fn pack(&self, out: &mut Vec<u8>) {
        let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes();
        match self {
            Self::Number(number) => {
                out.push(NUMBER);
                out.extend(number.to_be_bytes());
            }
            Self::Text(bytes) => {
                out.push(TEXT);
                out.extend(size(bytes.len()));
                out.extend(bytes);
            }
            Self::Array(values) => {
                out.push(ARRAY);
                out.extend(size(values.len()));
                values.iter().for_each(|value| value.pack(out));
            }
        }
    }

    /// Removes the first value from `packed`; `None` if it is damaged.
    pub fn unpack(packed: &mut &[u8]) -> Option<Self> {
        let kind = packed.split_off_first()?;
        if *kind == NUMBER {
            let bytes = packed.split_off(..8)?;
            return Some(Self::Number(f64::from_be_bytes(bytes.try_into().ok()?)));
        }
        let size = u32::from_be_bytes(packed.split_off(..4)?.try_into().ok()?) as usize;
        match *kind {
            TEXT => Some(Self::Text(packed.split_off(..size)?.to_vec())),
            ARRAY => (0..size).map(|_| Self::unpack(packed)).collect::<Option<_>>().map(Self::Array),
            _ => None,
        }
    }

    /// Returns the text at `index` of this array, from 0.
    #[must_use]
    pub fn text(&self, index: usize) -> Option<Vec<u8>> {
        match self.at(index)? {
            Self::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    fn at(&self, index: usize) -> Option<&Self> {
        if let Self::Array(values) = self { values.get(index) } else { None }
    }

    /// Returns the number at `index` of this array, from 0, as an integer.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the numbers of scripts are whole and below 2^53")]
    pub fn number(&self, index: usize) -> Option<i64> {
        match self.at(index)? {
            Self::Number(number) => Some(*number as i64),
            _ => None,
        }
    }
}
