# Host programs for a guest's file system. Sourced by guest-build.sh and guest-run.sh.

# copy_program ROOT PROGRAM PATH: into ROOT as PATH, with every library that ldd names, without debug information
copy_program() {
    local root=$1 bin lib
    bin=$(realpath "$2")
    mkdir -p "$root/$(dirname "$3")"
    strip --strip-debug -o "$root/$3" "$bin" 2>/dev/null || cp "$bin" "$root/$3"
    chmod 755 "$root/$3"
    ldd "$bin" 2>/dev/null | grep -oE '/[^ ]+\.so[^ ]*' | sort -u | while read -r lib; do
        [ -e "$root/$lib" ] || install -D "$(realpath "$lib")" "$root/$lib"
    done
}
