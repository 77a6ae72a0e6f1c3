//! How many elements a rank has for each rank of its group in an all-to-all, and how many it expects of each: two lists
//! of numbers that stand before the elements in its input, which begin at the next multiple of 64 bytes. What the
//! numbers may be is for the sidecar to check.

/// Bytes that the lists for a group of this size take.
#[must_use]
pub const fn bytes(size: u32) -> usize {
    (size as usize * 16).next_multiple_of(64)
}

/// The lists as they stand in the input.
pub fn write(send: &[u64], receive: &[u64], into: &mut [u8]) {
    let words = into.as_chunks_mut().0.iter_mut();
    for (word, number) in words.zip(send.iter().chain(receive)) {
        *word = number.to_ne_bytes();
    }
}

/// The lists of a rank of a group of this size: to each, from each. None if there are fewer bytes.
#[must_use]
pub fn read(from: &[u8], size: u32) -> Option<(Vec<u64>, Vec<u64>)> {
    let size = size as usize;
    let words = from.as_chunks().0.iter();
    let mut send: Vec<u64> = words
        .take(2 * size)
        .map(|word| u64::from_ne_bytes(*word))
        .collect();
    (send.len() == 2 * size).then(|| {
        let receive = send.split_off(size);
        (send, receive)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut into = vec![0; bytes(5)];
        let (send, receive) = (vec![1, 2, 3, 4, u64::MAX], vec![9, 8, 7, 6, 5]);
        write(&send, &receive, &mut into);
        assert_eq!(read(&into, 5), Some((send, receive)));
        assert_eq!(read(&into, 9), None);
        assert_eq!((bytes(1), bytes(4), bytes(5)), (64, 64, 128));
    }
}
