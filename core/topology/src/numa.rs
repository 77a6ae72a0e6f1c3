//! Processors and memory by NUMA node, in the kernel's words. Where they are read from is a shell's
//! business; what is to lie where is decided in `placement`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Largest number of a processor or of a NUMA node: what the kernel's affinity calls take.
pub const MAX_NUMBER: u32 = 1023;

/// Numbers of processors or of NUMA nodes, written as the kernel writes them: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Numbers(BTreeSet<u32>);

/// A list that the kernel would not write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to read the list of numbers `{0}`: use one like 0-3,8, of numbers up to {MAX_NUMBER}"
)]
pub struct ListError(String);

impl Numbers {
    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    /// From the smallest on.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.0.intersection(&other.0).copied().collect()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl FromIterator<u32> for Numbers {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl FromStr for Numbers {
    type Err = ListError;

    /// An empty list is one without numbers, as a node without processors has it.
    fn from_str(text: &str) -> Result<Self, ListError> {
        let wrong = || ListError(text.trim().escape_default().take(80).collect());
        let number = |word: &str| {
            let number = word.parse().ok().filter(|number| *number <= MAX_NUMBER);
            number.ok_or_else(wrong)
        };
        let mut numbers = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            numbers.extend(first..=last);
        }
        Ok(Self(numbers))
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            match last {
                _ if last == first => write!(f, "{separator}{first}")?,
                last => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

/// A NUMA node and its processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its processors; none where it is memory only.
    pub cpus: Numbers,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        let read = |text: &str| text.parse::<Numbers>().unwrap().iter().collect::<Vec<_>>();
        assert_eq!(read("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(read("7"), [7]);
        assert_eq!(read("\n"), [0u32; 0]);
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_text() {
        for wrong in ["a", "3-1", "0-", "-2", "0-4096", "1 2", "0-4294967295"] {
            let refused = wrong.parse::<Numbers>().unwrap_err().to_string();
            assert!(refused.contains(wrong), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(numbers in proptest::collection::btree_set(0..=MAX_NUMBER, 0..40)) {
            let numbers = Numbers(numbers);
            prop_assert_eq!(numbers.to_string().parse::<Numbers>().unwrap(), numbers);
        }
    }
}
