//! Who gets which orphan: cap-aware rendezvous hashing with largest remainder (design 8.2).
//!
//! Shares are proportional to the nodes' caps, rounded by largest remainder, and never above the room a node has; what
//! fits nowhere is left over. Within the shares each unit goes to the node it hashes highest with.

/// A node that may take units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its name: with the unit's, the only input of the hash.
    pub name: &'a str,
    /// Its share is proportional to this.
    pub cap: u32,
    /// Units it has room for now.
    pub room: u32,
}

/// For each unit the index of its node; `None` = no room anywhere. The same whatever the order of the units.
#[must_use]
pub fn assign(units: &[&str], nodes: &[Candidate<'_>]) -> Vec<Option<usize>> {
    let mut left = quotas(units.len(), nodes);
    let mut order: Vec<(u64, usize)> = units.iter().enumerate().map(|(i, u)| (hash(u, ""), i)).collect();
    order.sort_unstable_by(|a, b| (a.0, units[a.1]).cmp(&(b.0, units[b.1])));
    let mut to = vec![None; units.len()];
    for (_, i) in order {
        let open = (0..nodes.len()).filter(|n| left[*n] > 0);
        to[i] = open.max_by_key(|n| (hash(units[i], nodes[*n].name), nodes[*n].name));
        if let Some(n) = to[i] {
            left[n] -= 1;
        }
    }
    to
}

/// How many units each node gets.
#[must_use]
pub fn quotas(units: usize, nodes: &[Candidate<'_>]) -> Vec<usize> {
    let mut quota = vec![0usize; nodes.len()];
    let mut rest = units;
    loop {
        let open: Vec<usize> = (0..nodes.len()).filter(|n| quota[*n] < nodes[*n].room as usize).collect();
        let caps: u128 = open.iter().map(|n| u128::from(nodes[*n].cap.max(1))).sum();
        if rest == 0 || open.is_empty() {
            return quota;
        }
        // floor of each share, then one more for the largest remainders; names break ties
        let mut shares: Vec<(u128, usize, usize)> = Vec::with_capacity(open.len());
        for n in open {
            let exact = rest as u128 * u128::from(nodes[n].cap.max(1));
            shares.push((exact % caps, n, usize::try_from(exact / caps).unwrap_or(usize::MAX)));
        }
        let floors: usize = shares.iter().map(|s| s.2).sum();
        shares.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| nodes[a.1].name.cmp(nodes[b.1].name)));
        for (i, (_, n, share)) in shares.into_iter().enumerate() {
            let want = share + usize::from(i < rest - floors);
            quota[n] += want.min(nodes[n].room as usize - quota[n]);
        }
        let given: usize = quota.iter().sum();
        rest = units - given;
    }
}

/// FNV-1a over both names, finished with splitmix64: fixed for ever, else every placement would move.
fn hash(unit: &str, node: &str) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for byte in unit.bytes().chain([0]).chain(node.bytes()) {
        h = (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(caps: &[(u32, u32)]) -> Vec<Candidate<'static>> {
        const NAMES: [&str; 6] = ["o1", "o2", "o3", "o4", "o5", "o6"];
        caps.iter().zip(NAMES).map(|((cap, room), name)| Candidate { name, cap: *cap, room: *room }).collect()
    }

    fn counts(to: &[Option<usize>], n: usize) -> Vec<usize> {
        (0..n).map(|i| to.iter().filter(|t| **t == Some(i)).count()).collect()
    }

    #[test]
    fn five_survivors_get_1120_each() {
        let units: Vec<String> = (0..5600).map(|i| format!("g_{i}")).collect();
        let units: Vec<&str> = units.iter().map(String::as_str).collect();
        let to = assign(&units, &nodes(&[(10_000, 10_000); 5]));
        assert_eq!(counts(&to, 5), [1120; 5]);
    }

    #[test]
    fn shares_follow_caps_and_stop_at_the_room() {
        assert_eq!(quotas(10, &nodes(&[(1, 10), (1, 10), (1, 10)])), [4, 3, 3]);
        assert_eq!(quotas(9, &nodes(&[(200, 200), (100, 100)])), [6, 3]);
        assert_eq!(quotas(90, &nodes(&[(100, 5), (100, 100), (100, 100)])), [5, 43, 42]);
        assert_eq!(quotas(90, &nodes(&[(100, 5), (100, 10)])), [5, 10]);
        assert_eq!(quotas(3, &[]), Vec::<usize>::new());
    }

    #[test]
    fn what_does_not_fit_is_left_over() {
        let to = assign(&["a", "b", "c"], &nodes(&[(10, 1), (10, 1)]));
        assert_eq!(to.iter().filter(|t| t.is_none()).count(), 1);
        assert_eq!(assign(&["a"], &[]), [None]);
    }

    #[test]
    fn the_order_of_units_does_not_matter() {
        let n = nodes(&[(10, 3), (10, 3), (10, 3)]);
        let forth = assign(&["a", "b", "c", "d", "e"], &n);
        let mut back = assign(&["e", "d", "c", "b", "a"], &n);
        back.reverse();
        assert_eq!(forth, back);
    }
}
