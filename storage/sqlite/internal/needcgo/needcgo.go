//go:build !cgo

package needcgo

// The compiler prints the name, which nothing declares.
var _ = belay_with_SQLite_needs_cgo__set_CGO_ENABLED_1_and_install_a_C_compiler
