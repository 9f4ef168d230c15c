package sitelock
