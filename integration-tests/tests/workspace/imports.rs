//! The import graph of a crate: the files that take names from each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The keywords before the name of an item.
const ITEMS: [&str; 8] = ["const", "enum", "fn", "static", "struct", "trait", "type", "union"];

/// The longest chain of re-exports.
const MAX_REEXPORTS: usize = 16;

type Names = Vec<String>;

/// For each file, the files that it takes names from, and these names.
pub(crate) type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

/// A module. An inline module belongs to the file that contains it.
#[derive(Debug)]
struct Module {
    file: PathBuf,
    items: BTreeSet<String>,
    /// The imported names and their paths. `*` stands for all names.
    imports: Vec<(String, Names)>,
    /// The paths that the code of the module contains. A re-export alone is none.
    uses: BTreeSet<Names>,
}

#[derive(Debug, Default)]
struct Modules(BTreeMap<Names, Module>);

/// Reads the crate with this root file, without its tests.
pub(crate) fn imports(root: &Path) -> Imports {
    let mut modules = Modules::default();
    modules.read_file(Names::new(), root.to_owned());
    let mut imports = Imports::new();
    for (path, module) in &modules.0 {
        let from = imports.entry(module.file.clone()).or_default();
        for used in &module.uses {
            if let Some((file, name)) = modules.resolve(path, used, 0)
                && file != module.file
            {
                from.entry(file).or_default().insert(name);
            }
        }
    }
    imports
}

/// Returns the groups of files in which each file depends on all others.
pub(crate) fn cycles(imports: &Imports) -> Vec<BTreeSet<&Path>> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        imports.keys().map(|file| (file.as_path(), reachable(imports, file))).collect();
    let group = |file: &&Path| -> BTreeSet<&Path> {
        reached[file].iter().copied().filter(|other| reached[other].contains(file)).collect()
    };
    let groups: BTreeSet<BTreeSet<&Path>> = reached.keys().map(group).collect();
    groups.into_iter().filter(|group| !group.is_empty()).collect()
}

fn reachable<'a>(imports: &'a Imports, from: &'a Path) -> BTreeSet<&'a Path> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        let targets = imports.get(file).into_iter().flat_map(BTreeMap::keys);
        next.extend(targets.map(PathBuf::as_path).filter(|target| found.insert(*target)));
    }
    found
}

impl Modules {
    fn read_file(&mut self, path: Names, file: PathBuf) {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.read(path, file, tokens);
    }

    fn read(&mut self, path: Names, file: PathBuf, tokens: TokenStream) {
        let mut module = Module { file, items: BTreeSet::new(), imports: Vec::new(), uses: BTreeSet::new() };
        let mut children = Vec::new();
        let mut rest = &tokens.into_iter().collect::<Vec<_>>()[..];
        let mut is_public = false;
        while let [first, after @ ..] = rest {
            rest = match (text(first).as_str(), after) {
                ("#", [attribute, after @ ..]) if is_left_out(attribute) => skip_item(after),
                ("pub", after) => {
                    is_public = true;
                    let is_restricted = matches!(after.first(), Some(TokenTree::Group(_)));
                    rest = &after[usize::from(is_restricted)..];
                    continue;
                }
                ("use", after) => module.read_import(after, is_public),
                // A lifetime: `static` in `&'static Name` defines no item.
                ("'", [_, after @ ..]) => after,
                ("mod", [name, body, after @ ..]) => {
                    children.push((name.to_string(), body.clone()));
                    after
                }
                (keyword, [TokenTree::Ident(name), after @ ..])
                    if ITEMS.contains(&keyword) && !ITEMS.contains(&name.to_string().as_str()) =>
                {
                    module.items.insert(name.to_string());
                    after
                }
                ("macro_rules", [_, name, after @ ..]) => {
                    module.items.insert(name.to_string());
                    after
                }
                _ => {
                    let length = read_code(rest, &mut module);
                    &rest[length..]
                }
            };
            is_public = false;
        }
        for (name, body) in children {
            let child = [&path[..], std::slice::from_ref(&name)].concat();
            match body {
                TokenTree::Group(body) => self.read(child, module.file.clone(), body.stream()),
                _ => self.read_file(child, file_of(&module.file, &name)),
            }
        }
        self.0.insert(path, module);
    }

    /// Returns the file that defines the item of `path`, as `module` sees it, and the name of the item.
    fn resolve(&self, module: &[String], path: &[String], reexports: usize) -> Option<(PathBuf, String)> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => return self.resolve(&[], rest, reexports),
            "self" => return self.resolve(module, rest, reexports),
            "super" => return self.resolve(module.split_last()?.1, rest, reexports),
            _ => {}
        }
        let child = [module, std::slice::from_ref(first)].concat();
        if self.0.contains_key(&child) {
            return self.resolve(&child, rest, reexports);
        }
        let of = self.0.get(module)?;
        if of.items.contains(first) {
            return Some((of.file.clone(), first.clone()));
        }
        if reexports == MAX_REEXPORTS {
            return None;
        }
        of.imports.iter().find_map(|(name, import)| {
            let path = match name.as_str() {
                // A path that begins with its own name is one of another crate.
                name if name == first && import.first() != Some(first) => [import, rest].concat(),
                "*" => [import, path].concat(),
                _ => return None,
            };
            self.resolve(module, &path, reexports + 1)
        })
    }
}

impl Module {
    /// Adds the names of the import at the start of `tokens`; returns the tokens after it.
    fn read_import<'t>(&mut self, tokens: &'t [TokenTree], is_reexport: bool) -> &'t [TokenTree] {
        let end = tokens.iter().position(|token| text(token) == ";").unwrap_or(tokens.len());
        let mut found = Vec::new();
        read_tree(&tokens[..end], &Names::new(), &mut found);
        if !is_reexport {
            self.uses.extend(found.iter().map(|(_, path)| path.clone()));
        }
        self.imports.extend(found);
        &tokens[end..]
    }
}

/// Returns the text of a token; that of a group is empty.
fn text(token: &TokenTree) -> String {
    if let TokenTree::Group(_) = token { String::new() } else { token.to_string() }
}

/// Returns true for the attribute of an item for tests, or of a module in a file of another crate, which is read with that crate.
fn is_left_out(attribute: &TokenTree) -> bool {
    let text: String = attribute.to_string().split_whitespace().collect();
    ["[cfg(test", "[cfg(all(test", "[path="].iter().any(|start| text.starts_with(start))
}

/// Returns the tokens after the item at the start.
fn skip_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => text(token) == ";",
    };
    let end = tokens.iter().position(is_end).map_or(tokens.len(), |end| end + 1);
    // The braces of a `use` end with a semicolon.
    let end = end + usize::from(tokens.get(end).is_some_and(|token| text(token) == ";"));
    &tokens[end..]
}

/// Adds the names and paths of a `use` tree.
fn read_tree(tokens: &[TokenTree], prefix: &[String], found: &mut Vec<(String, Names)>) {
    for tree in tokens.split(|token| text(token) == ",").filter(|tree| !tree.is_empty()) {
        let (mut path, mut name) = (prefix.to_owned(), None);
        let mut tokens = tree.iter().filter(|token| text(token) != ":");
        while let Some(token) = tokens.next() {
            match (token, text(token).as_str()) {
                (TokenTree::Group(group), _) => {
                    read_tree(&group.stream().into_iter().collect::<Vec<_>>(), &path, found);
                    path.clear();
                }
                (_, "as") => name = tokens.next().map(ToString::to_string),
                (_, "*") => name = Some("*".to_owned()),
                // `path::{self}` imports the path; `self::path` begins with it.
                (_, "self") if !path.is_empty() => {}
                (_, segment) => path.push(segment.to_owned()),
            }
        }
        if let Some(last) = path.last().cloned() {
            found.push((name.unwrap_or(last), path));
        }
    }
}

/// Adds the path at the start of `tokens`, or the paths in the group there. Returns the number of tokens.
fn read_code(tokens: &[TokenTree], module: &mut Module) -> usize {
    let Some(TokenTree::Group(group)) = tokens.first() else {
        let (path, length) = path_at(tokens);
        module.uses.extend(path);
        return length;
    };
    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
    let mut rest = &inside[..];
    while let [first, after @ ..] = rest {
        rest = match (text(first).as_str(), after) {
            // An import inside a function is treated as one of the module.
            ("use", _) => module.read_import(after, false),
            // The name of a field or a method.
            (".", [TokenTree::Ident(_), after @ ..]) => after,
            // A path in a macro, which the callers of the macro use.
            ("$", _) => &after[path_at(after).1..],
            _ => &rest[read_code(rest, module)..],
        };
    }
    1
}

/// Returns the path at the start of `tokens`, if there is one, and the number of its tokens, or 1.
fn path_at(tokens: &[TokenTree]) -> (Option<Names>, usize) {
    let [TokenTree::Ident(first), ..] = tokens else { return (None, tokens.len().min(1)) };
    let (mut path, mut length) = (vec![first.to_string()], 1);
    while let [colon, second, TokenTree::Ident(name), ..] = &tokens[length..]
        && text(colon) == ":"
        && text(second) == ":"
    {
        path.push(name.to_string());
        length += 3;
    }
    (Some(path), length)
}

/// Returns the file of the module `name` that `parent` declares.
fn file_of(parent: &Path, name: &str) -> PathBuf {
    let directory = match parent.file_name().and_then(|name| name.to_str()) {
        Some("lib.rs" | "main.rs" | "mod.rs") => parent.with_file_name(""),
        _ => parent.with_extension(""),
    };
    let file = directory.join(format!("{name}.rs"));
    if file.exists() { file } else { directory.join(name).join("mod.rs") }
}
