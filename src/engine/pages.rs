//! The page pool: which pages are free and how many holders each of the others has. Knows no sequence and no token.

/// Pages of the caches, main and draft head alike: a page id means both.
#[derive(Debug, Clone)]
pub struct PagePool {
    page_tokens: u32,
    /// Holders of each page; 0 is free.
    holders: Vec<u32>,
    /// Free pages; the one released last is handed out first, so that a use after release shows at once.
    free: Vec<u32>,
}

impl PagePool {
    pub fn new(pages: u32, page_tokens: u32) -> PagePool {
        assert!(page_tokens >= 1, "a page holds at least one token");
        PagePool { page_tokens, holders: vec![0; pages as usize], free: (0..pages).rev().collect() }
    }

    /// Pages that `positions` positions from 0 on take.
    pub fn pages_for(&self, positions: u32) -> u32 {
        positions.div_ceil(self.page_tokens)
    }

    /// Grows `pages` to hold `positions` positions, or leaves all as it was and returns false.
    pub fn grow(&mut self, pages: &mut Vec<u32>, positions: u32) -> bool {
        let wanted = self.pages_for(positions) as usize;
        let missing = wanted.saturating_sub(pages.len());
        if missing > self.free.len() {
            return false;
        }
        for _ in 0..missing {
            let page = self.free.pop().expect("counted above");
            assert_eq!(self.holders[page as usize], 0, "page {page} was free and held");
            self.holders[page as usize] = 1;
            pages.push(page);
        }
        true
    }

    /// One holder more. The page must be held: its content belongs to whoever holds it.
    pub fn share(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        assert!(*holders > 0, "page {page} is free and cannot be shared");
        *holders += 1;
    }

    /// One holder less; the last one frees the page.
    pub fn release(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        assert!(*holders > 0, "page {page} is released once too often");
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    pub fn holders(&self, page: u32) -> u32 {
        self.holders[page as usize]
    }

    pub fn total(&self) -> u32 {
        self.holders.len() as u32
    }

    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Held and free pages are all pages, and every page has exactly the holders that `lists` show.
    pub fn check<'a>(&self, lists: impl Iterator<Item = &'a Vec<u32>>) {
        let mut seen = vec![0; self.holders.len()];
        for page in lists.flatten() {
            seen[*page as usize] += 1;
        }
        for (page, (holders, seen)) in self.holders.iter().zip(&seen).enumerate() {
            assert_eq!(holders, seen, "page {page}: counted holders and lists that name it");
        }
        for page in &self.free {
            assert_eq!(seen[*page as usize], 0, "page {page} is free and held");
            seen[*page as usize] = 1;
        }
        assert!(seen.iter().all(|count| *count > 0), "a page is neither free nor held: pages leak");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sequence of eight operations over three pages and two lists, against counting by hand.
    #[test]
    fn all_small_cases() {
        for code in 0..5u32.pow(8) {
            let mut pool = PagePool::new(3, 2);
            let mut lists = [Vec::new(), Vec::new()];
            for step in 0..8 {
                match code / 5u32.pow(step) % 5 {
                    operation @ (0 | 1) => {
                        let list = &mut lists[operation as usize];
                        let (before, free) = (list.len(), pool.free());
                        let grown = pool.grow(list, 2 * before as u32 + 1);
                        assert_eq!(grown, free > 0);
                        assert_eq!(list.len(), before + usize::from(grown));
                    }
                    operation @ (2 | 3) => {
                        for page in lists[operation as usize - 2].drain(..) {
                            pool.release(page);
                        }
                    }
                    _ => {
                        let [from, to] = &mut lists;
                        if let Some(page) = from.first().filter(|page| !to.contains(page)) {
                            pool.share(*page);
                            to.push(*page);
                        }
                    }
                }
                pool.check(lists.iter());
            }
        }
    }

    #[test]
    fn growth_is_all_or_nothing() {
        let mut pool = PagePool::new(3, 4);
        let mut pages = Vec::new();
        assert!(!pool.grow(&mut pages, 13) && pages.is_empty() && pool.free() == 3);
        assert!(pool.grow(&mut pages, 12) && pages.len() == 3);
        assert!(pool.grow(&mut pages, 5) && pages.len() == 3, "never shrinks");
    }

    #[test]
    #[should_panic(expected = "released once too often")]
    fn a_page_freed_twice_is_caught() {
        let mut pool = PagePool::new(1, 1);
        let mut pages = Vec::new();
        pool.grow(&mut pages, 1);
        pool.release(0);
        pool.release(0);
    }

    #[test]
    #[should_panic(expected = "counted holders and lists")]
    fn a_page_freed_early_is_caught() {
        let mut pool = PagePool::new(2, 1);
        let mut pages = Vec::new();
        pool.grow(&mut pages, 1);
        pool.release(pages[0]);
        pool.check([pages].iter());
    }
}
