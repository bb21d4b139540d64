//! Numbers of which only the order matters, such as tokens and queue positions.

/// Replaces the numbers by their ranks: states that differ only in gaps are one state then. Zero stays zero.
pub fn close_gaps(numbers: &mut [&mut u8]) {
    numbers.sort_unstable();
    let (mut last, mut rank) = (0, 0);
    for number in numbers {
        if **number != last {
            (last, rank) = (**number, rank + 1);
        }
        **number = rank;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_stays() {
        let mut numbers = [7, 0, 3, 7, 9];
        close_gaps(&mut numbers.each_mut());
        assert_eq!(numbers, [2, 0, 1, 2, 3]);
    }
}
