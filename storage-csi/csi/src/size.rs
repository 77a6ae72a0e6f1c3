//! How large a volume shall be. Whether there is room belongs to the store.

use crate::pb::csi::CapacityRange;

/// Where a claim does not say.
const DEFAULT_BYTES: u64 = 1 << 30;

/// Why a size is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    #[error("{field} is {bytes}; ask for 0 or more bytes")]
    Negative { field: &'static str, bytes: i64 },
    #[error(
        "at least {required} bytes and at most {limit} bytes were asked for; raise the limit or \
         ask for less"
    )]
    Empty { required: u64, limit: u64 },
}

/// What a request says of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedSize {
    required: u64,
    limit: u64,
}

impl WantedSize {
    pub(crate) fn parse(range: Option<CapacityRange>) -> Result<Self, SizeError> {
        let CapacityRange {
            required_bytes,
            limit_bytes,
        } = range.unwrap_or_default();
        let required = positive("required_bytes", required_bytes)?;
        let limit = match positive("limit_bytes", limit_bytes)? {
            0 => u64::MAX,
            limit if limit < required => return Err(SizeError::Empty { required, limit }),
            limit => limit,
        };
        Ok(Self { required, limit })
    }

    /// What a new volume gets.
    pub(crate) fn bytes(&self) -> u64 {
        match self.required {
            0 => DEFAULT_BYTES.min(self.limit),
            required => required,
        }
    }

    /// Whether a volume that is there is what was asked for.
    pub(crate) fn allows(&self, bytes: u64) -> bool {
        (self.required..=self.limit).contains(&bytes)
    }
}

fn positive(field: &'static str, bytes: i64) -> Result<u64, SizeError> {
    u64::try_from(bytes).map_err(|_| SizeError::Negative { field, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(required_bytes: i64, limit_bytes: i64) -> Result<WantedSize, SizeError> {
        WantedSize::parse(Some(CapacityRange {
            required_bytes,
            limit_bytes,
        }))
    }

    #[test]
    fn a_claim_that_does_not_say_gets_a_gibibyte_if_the_limit_lets_it() {
        assert_eq!(WantedSize::parse(None).unwrap().bytes(), 1 << 30);
        assert_eq!(parse(0, 0).unwrap().bytes(), 1 << 30);
        assert_eq!(parse(0, 5).unwrap().bytes(), 5);
        assert_eq!(parse(7, 0).unwrap().bytes(), 7);
    }

    proptest! {
        #[test]
        fn a_new_volume_is_as_large_as_was_asked_for(required: i64, limit: i64) {
            match parse(required, limit) {
                Ok(size) => {
                    let bytes = i128::from(size.bytes());
                    prop_assert!(size.allows(size.bytes()));
                    prop_assert!(bytes >= i128::from(required) && bytes > 0);
                    prop_assert!(limit == 0 || bytes <= i128::from(limit));
                }
                Err(SizeError::Negative { bytes, .. }) => {
                    prop_assert!(bytes < 0 && (required == bytes || limit == bytes));
                }
                Err(SizeError::Empty { .. }) => prop_assert!(limit > 0 && limit < required),
            }
        }
    }
}
