//! Credit: how much one side may send on a channel before the other has taken it.

use super::Breach;

/// The window of each channel at the start.
pub const WINDOW: u32 = 256 << 10;

/// What a DATA frame costs beyond its bytes, so that single bytes cannot pile up as objects.
const FRAME_COST: u32 = 64;

/// The most bytes that a sender puts into one DATA frame: four of them fill a window.
pub const MAX_DATA: usize = (64 << 10) - 64;

/// Credit is given back when this much has gathered, to save frames.
const GRANT: u32 = WINDOW / 4;

/// What a DATA frame with this many bytes costs.
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
        Self { left: WINDOW }
    }
}

impl SendWindow {
    /// How many bytes one frame may have now; 0 if none may be sent.
    #[must_use]
    pub fn room(&self) -> usize {
        usize::try_from(self.left.saturating_sub(FRAME_COST))
            .unwrap_or(0)
            .min(MAX_DATA)
    }

    /// Counts a frame of that many bytes; it has to be within the room.
    pub fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(cost(bytes));
    }

    /// Takes credit back.
    ///
    /// # Errors
    /// It is more than was spent.
    pub fn refund(&mut self, amount: u32) -> Result<(), Breach> {
        match self.left.checked_add(amount) {
            Some(left) if left <= WINDOW => {
                self.left = left;
                Ok(())
            }
            _ => Err(Breach::new("more credit than was spent")),
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
        Self { left: WINDOW, owed: 0 }
    }
}

impl ReceiveWindow {
    /// Counts a frame that came.
    ///
    /// # Errors
    /// The window does not cover it.
    pub fn receive(&mut self, bytes: usize) -> Result<(), Breach> {
        self.left = self
            .left
            .checked_sub(cost(bytes))
            .ok_or_else(|| Breach::new("data beyond the window"))?;
        Ok(())
    }

    /// Says that a frame of that many bytes was passed on. Some: the CREDIT to send now.
    #[must_use]
    pub fn passed(&mut self, bytes: usize) -> Option<u32> {
        self.owed = self.owed.saturating_add(cost(bytes));
        if self.owed < GRANT {
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
        fn a_sender_that_keeps_to_its_window_is_never_in_breach_and_never_stuck(
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
    fn data_beyond_the_window_and_credit_beyond_what_was_spent_are_breaches() {
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
