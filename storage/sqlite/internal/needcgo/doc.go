// Package needcgo stops a build without cgo, before the compiler reports everything else that is missing then.
package needcgo
