//! Flow control: the credit for bytes that the other side has not taken yet.

use super::ProtocolError;

/// The initial window of each channel.
pub const INITIAL_WINDOW: u32 = 256 << 10;

/// The cost of a DATA frame beyond its bytes, so single bytes cannot pile up as objects.
const FRAME_COST: u32 = 64;

/// The maximum number of bytes in one DATA frame of a sender. Four such frames fill a window.
pub const MAX_DATA: usize = (64 << 10) - 64;

/// The amount at which the receiver returns credit. Larger amounts need fewer frames.
const CREDIT_THRESHOLD: u32 = INITIAL_WINDOW / 4;

/// Returns the cost of a DATA frame with this number of bytes.
#[must_use]
pub fn cost(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(FRAME_COST)
}

/// The sender's side of a window.
#[derive(Debug)]
pub struct SendWindow {
    left: u32,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self { left: INITIAL_WINDOW }
    }
}

impl SendWindow {
    /// Returns the maximum number of bytes for the next frame. 0 if none may be sent.
    #[must_use]
    pub fn room(&self) -> usize {
        usize::try_from(self.left.saturating_sub(FRAME_COST))
            .unwrap_or(0)
            .min(MAX_DATA)
    }

    /// Counts a frame with this number of bytes. It must be within the room.
    pub fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(cost(bytes));
    }

    /// Adds credit that the receiver returned.
    ///
    /// # Errors
    /// The amount is larger than the spent credit.
    pub fn refund(&mut self, amount: u32) -> Result<(), ProtocolError> {
        match self.left.checked_add(amount) {
            Some(left) if left <= INITIAL_WINDOW => {
                self.left = left;
                Ok(())
            }
            _ => Err(ProtocolError::new("more credit than was spent")),
        }
    }
}

/// The receiver's side of a window.
#[derive(Debug)]
pub struct ReceiveWindow {
    left: u32,
    owed: u32,
}

impl Default for ReceiveWindow {
    fn default() -> Self {
        Self {
            left: INITIAL_WINDOW,
            owed: 0,
        }
    }
}

impl ReceiveWindow {
    /// Counts a received frame.
    ///
    /// # Errors
    /// The window does not cover it.
    pub fn receive(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        self.left = self
            .left
            .checked_sub(cost(bytes))
            .ok_or_else(|| ProtocolError::new("data beyond the window"))?;
        Ok(())
    }

    /// Counts a frame with this number of bytes as passed on. Returns the amount of the CREDIT frame to send now, if
    /// any.
    #[must_use]
    pub fn passed(&mut self, bytes: usize) -> Option<u32> {
        self.owed = self.owed.saturating_add(cost(bytes));
        if self.owed < CREDIT_THRESHOLD {
            return None;
        }
        let amount = std::mem::take(&mut self.owed);
        self.left = self.left.saturating_add(amount);
        Some(amount)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sender_within_its_window_is_never_an_error_and_never_blocks_forever(
            frames in proptest::collection::vec(1_usize..=MAX_DATA, 1..200), taken_late in 0_usize..4,
        ) {
            let (mut send, mut receive) = (SendWindow::default(), ReceiveWindow::default());
            let mut waiting = std::collections::VecDeque::new();
            for mut bytes in frames {
                while bytes > 0 {
                    let now = bytes.min(send.room());
                    if now > 0 {
                        send.spend(now);
                        prop_assert!(receive.receive(now).is_ok());
                        waiting.push_back(now);
                        bytes -= now;
                    }
                    while waiting.len() > if now == 0 { 0 } else { taken_late } {
                        if let Some(amount) = receive.passed(waiting.pop_front().unwrap()) {
                            prop_assert!(send.refund(amount).is_ok());
                        }
                    }
                    prop_assert!(now > 0 || send.room() > 0, "stuck with everything taken");
                }
            }
        }
    }

    #[test]
    fn data_beyond_the_window_and_excess_credit_are_protocol_errors() {
        let mut receive = ReceiveWindow::default();
        for _ in 0..4 {
            receive.receive(MAX_DATA).unwrap();
        }
        assert!(receive.receive(1).is_err());
        let mut send = SendWindow::default();
        assert!(send.refund(1).is_err());
        send.spend(100);
        assert!(send.refund(165).is_err());
        assert!(send.refund(164).is_ok());
        assert!(send.refund(u32::MAX).is_err());
    }

    #[test]
    fn single_bytes_cannot_pile_up() {
        let mut receive = ReceiveWindow::default();
        let frames = std::iter::from_fn(|| receive.receive(1).ok()).count();
        assert_eq!(frames, 4032);
    }
}
