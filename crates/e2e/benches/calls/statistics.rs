//! Medians, and how sure they are.

/// A number with the interval in which it lies with 95 % confidence.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

pub fn quantile(readings: &[f64], part: f64) -> f64 {
    let mut sorted = readings.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    sorted[((last as f64) * part).round() as usize]
}

pub fn median(readings: &[f64]) -> f64 {
    quantile(readings, 0.5)
}

/// The median, by drawing the rounds again and again.
pub fn median_of(readings: &[f64]) -> Estimate {
    estimate(readings.len(), |rounds| {
        median(&rounds.iter().map(|round| readings[*round]).collect::<Vec<_>>())
    })
}

/// The ratio of two medians of the same rounds.
pub fn ratio_of(readings: &[f64], others: &[f64]) -> Estimate {
    estimate(readings.len().min(others.len()), |rounds| {
        let of = |all: &[f64]| median(&rounds.iter().map(|round| all[*round]).collect::<Vec<_>>());
        of(readings) / of(others)
    })
}

fn estimate(rounds: usize, value: impl Fn(&[usize]) -> f64) -> Estimate {
    let all: Vec<usize> = (0..rounds).collect();
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let drawn: Vec<f64> = (0..1000)
        .map(|_| {
            let draw: Vec<usize> = all
                .iter()
                .map(|_| (random(&mut state) * rounds as f64) as usize)
                .collect();
            value(&draw)
        })
        .collect();
    Estimate {
        value: value(&all),
        low: quantile(&drawn, 0.025),
        high: quantile(&drawn, 0.975),
    }
}

/// From 0 to 1, the same in every run (xorshift).
pub fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1_u64 << 53) as f64
}
