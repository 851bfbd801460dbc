//! Which connection takes the next request: the least loaded one, the one that has waited longest among equals.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    next: u32,
    previous: u32,
    /// The list the connection is in, or `NONE`.
    level: u32,
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// Connections with room, in one list for each number of requests in flight. Every operation takes constant time in
/// the number of connections.
pub struct Pool {
    links: Vec<Link>,
    levels: Vec<List>,
}

impl Pool {
    pub fn new(connections: usize, depth: usize) -> Self {
        Self {
            links: vec![Link { next: NONE, previous: NONE, level: NONE }; connections],
            levels: vec![List { first: NONE, last: NONE }; depth],
        }
    }

    /// The connection to use next.
    pub fn least_loaded(&self) -> Option<usize> {
        self.levels.iter().find(|list| list.first != NONE).map(|list| list.first as usize)
    }

    /// States how many requests a connection has in flight; one that is full is not offered.
    pub fn place(&mut self, connection: usize, in_flight: usize) {
        self.remove(connection);
        if in_flight >= self.levels.len() {
            return;
        }
        let level = &mut self.levels[in_flight];
        let previous = std::mem::replace(&mut level.last, connection as u32);
        if previous == NONE {
            level.first = connection as u32;
        } else {
            self.links[previous as usize].next = connection as u32;
        }
        self.links[connection] = Link { next: NONE, previous, level: in_flight as u32 };
    }

    /// The connection is not to be used.
    pub fn remove(&mut self, connection: usize) {
        let Link { next, previous, level } = self.links[connection];
        if level == NONE {
            return;
        }
        let siblings = &mut self.levels[level as usize];
        if previous == NONE {
            siblings.first = next;
        } else {
            self.links[previous as usize].next = next;
        }
        if next == NONE {
            siblings.last = previous;
        } else {
            self.links[next as usize].previous = previous;
        }
        self.links[connection] = Link { next: NONE, previous: NONE, level: NONE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::VecDeque;

    /// Over random moves the pool agrees with a plain model of queues.
    #[test]
    fn agrees_with_a_model() {
        let (connections, depth) = (7, 3);
        let mut pool = Pool::new(connections, depth);
        let mut model: Vec<VecDeque<usize>> = vec![VecDeque::new(); depth];
        let mut rng = Rng::new(8, 8);
        for _ in 0..20_000 {
            let connection = rng.below(connections as u64) as usize;
            let level = rng.below(depth as u64 + 2) as usize;
            for queue in &mut model {
                queue.retain(|c| *c != connection);
            }
            if level <= depth {
                pool.place(connection, level);
                if level < depth {
                    model[level].push_back(connection);
                }
            } else {
                pool.remove(connection);
            }
            assert_eq!(pool.least_loaded(), model.iter().find_map(|queue| queue.front().copied()));
        }
    }
}
